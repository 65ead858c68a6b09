// What Python sees of log_histogram and kth_magnitude.

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "log_histogram.h"
#include "magnitudes.h"
#include "select.h"

namespace nb = nanobind;

void bind_select(nb::module_& m) {
    const auto without_gil = nb::call_guard<nb::gil_scoped_release>();
    using A = std::uintptr_t;
    using N = std::size_t;

    m.attr("BINS_PER_OCTAVE") = lograd::kBinsPerOctave;
    m.def("log_histogram", [](int type, A x, N count, N stride, int threads, A out) {
        lograd::log_histogram(type, reinterpret_cast<const void*>(x), count, stride, threads,
                              reinterpret_cast<std::int64_t*>(out));
    }, without_gil);
    m.def("kth_magnitude", [](int type, A x, N count, N k, int threads, A out) {
        lograd::kth_magnitude(type, reinterpret_cast<const void*>(x), count, k, threads, reinterpret_cast<float*>(out));
    }, without_gil);
}
