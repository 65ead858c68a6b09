// What the files beside this one share.  Only they know Python, and all that Python calls is registered here.
//
// Arrays come as addresses, because a DLPack exchange costs more than a small kernel; the callers in Python check type,
// layout and size (`native.address`).  CMakeLists.txt hashes this folder into INTERFACE, and native.py compares.

#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/convolution.h"
#include "base/types.h"

namespace lograd {

namespace nb = nanobind;

using Address = std::uintptr_t;
using Size = std::size_t;

template <class T> T* at(Address address) { return reinterpret_cast<T*>(address); }
inline Type type_of(int number) { return static_cast<Type>(number); }
// A key is an address, or 0 where nothing is random.
inline Key key_at(Address key) {
    return key ? Key{at<const std::uint64_t>(key)[0], at<const std::uint64_t>(key)[1]} : Key{0, 0};
}
// (input, output, kernel, stride, padding, dilation)
inline Axis axis(const std::array<Size, 6>& a) { return {a[0], a[1], a[2], a[3], a[4], a[5]}; }
inline void write(const Counts& counts, Address out) {
    auto* to = at<std::int64_t>(out);
    to[0] = counts.zeros, to[1] = counts.nans, to[2] = counts.clipped;
}

// The functions of the module.  `kernel` adds one that runs without the interpreter's lock, and its name to KERNELS.
class Functions {
    nb::module_& module_;
    nb::list kernels_;

public:
    explicit Functions(nb::module_& module) : module_(module) {}
    ~Functions() { module_.attr("KERNELS") = nb::tuple(kernels_); }

    template <class Function, class... Extra>
    void kernel(const char* name, Function&& function, const Extra&... extra) {
        module_.def(name, std::forward<Function>(function), nb::call_guard<nb::gil_scoped_release>(), extra...);
        kernels_.append(name);
    }
    // One whose arguments are given by name only: nobody can count twenty.
    template <class Function, class... Names> void named(const char* name, Function&& function, const Names&... names) {
        kernel(name, std::forward<Function>(function), nb::kw_only(), nb::arg(names)...);
    }
    template <class Function> void other(const char* name, Function&& function) {
        module_.def(name, std::forward<Function>(function));
    }
};

void bind_magnitudes(Functions&);
void bind_elementwise(Functions&);
void bind_rows(Functions&);
void bind_codes(Functions&);
void bind_blocks(Functions&);
void bind_sparse(Functions&);
void bind_integer(Functions&);
void bind_levels(Functions&);
void bind_layer(Functions&);
void bind_normalization(Functions&);
void bind_learned(Functions&);
void bind_packets(Functions&);

}  // namespace lograd
