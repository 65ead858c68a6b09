// lograd._native: the only file that knows Python.  Arrays come as addresses, because a DLPack exchange costs more than
// a small kernel; the callers in Python check type, layout and size.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>

#include "cpu.h"
#include "log_histogram.h"

namespace nb = nanobind;

namespace {

template <class T> void log_histogram(std::uintptr_t data, std::size_t count, std::uintptr_t out) {
    lograd::log_histogram(reinterpret_cast<const T*>(data), count, reinterpret_cast<std::int64_t*>(out));
}

}  // namespace

NB_MODULE(_native, m) {
    const auto without_gil = nb::call_guard<nb::gil_scoped_release>();

    m.attr("BINS_PER_OCTAVE") = lograd::kBinsPerOctave;
    m.attr("KERNELS") = nb::make_tuple("log_histogram");
    m.def("compiler", &lograd::compiler);
    m.def("cpu_features", &lograd::cpu_features);
    m.def("isa_level", &lograd::isa_level);
    m.def("log_histogram_float32", &log_histogram<float>, nb::arg("data"), nb::arg("count"), nb::arg("out"), without_gil);
    m.def("log_histogram_float64", &log_histogram<double>, nb::arg("data"), nb::arg("count"), nb::arg("out"), without_gil);
}
