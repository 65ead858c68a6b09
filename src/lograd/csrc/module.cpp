// lograd._native: only this file and bind_*.cpp know Python.  Arrays come as addresses, because a DLPack exchange costs more than
// a small kernel; the callers in Python check type, layout and size.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "cpu.h"
#include "kernels.h"
#include "parallel.h"

namespace nb = nanobind;

void bind_rows(nb::module_&);
void bind_select(nb::module_& m);
void bind_sparse(nb::module_&);
namespace lograd {
void bind_blocks(nb::module_&);
}  // namespace lograd

namespace {

// Pieces of this many elements start at a new block of random numbers and at a new cache line.
constexpr std::size_t kGrain = 1024;

struct Task {
    int type;
    std::uintptr_t x, y;
    std::size_t count;
    std::uintptr_t key;  // seed and offset, or null
    int threads;
};

// Runs kernel(piece, counts) over the pieces of a tensor and adds what they counted to counts[0..4), if any.
template <class Kernel> void over_pieces(const Task& task, std::uintptr_t counts, Kernel kernel) {
    const auto type = static_cast<lograd::Type>(task.type);
    const std::size_t size = type == lograd::Type::kFloat32 ? 4 : 2;
    const auto* key = reinterpret_cast<const std::uint64_t*>(task.key);
    const std::uint64_t seed = key ? key[0] : 0, offset = key ? key[1] : 0;
    // Pieces are cut where blocks of random numbers begin, whatever the offset.
    const std::size_t lead = (8 - offset % 8) % 8;
    std::mutex mutex;
    lograd::Counts total{counts != 0};
    lograd::parallel_for(task.count, kGrain, task.threads, [&](std::size_t begin, std::size_t end) {
        begin += begin ? lead : 0;
        end += end < task.count ? lead : 0;
        if (end > task.count) end = task.count;
        if (begin >= end) return;
        lograd::Counts own{counts != 0};
        kernel(lograd::Piece{type, reinterpret_cast<const char*>(task.x) + begin * size,
                             reinterpret_cast<char*>(task.y) + begin * size, end - begin, offset + begin, seed},
               own);
        std::lock_guard<std::mutex> lock(mutex);
        total.zeros += own.zeros, total.nans += own.nans, total.clipped += own.clipped;
        total.zeros_before += own.zeros_before;
    });
    if (!counts) return;
    auto* out = reinterpret_cast<std::int64_t*>(counts);
    out[0] += total.zeros, out[1] += total.nans, out[2] += total.clipped, out[3] += total.zeros_before;
}

float value_at(std::uintptr_t address) { return *reinterpret_cast<const float*>(address); }

}  // namespace

NB_MODULE(_native, m) {
    using lograd::kernels;
    const auto without_gil = nb::call_guard<nb::gil_scoped_release>();
    using A = std::uintptr_t;
    using N = std::size_t;

    // Counts up with every change of what these functions take or write; native.py knows the number, too.
    m.attr("INTERFACE") = 3;
    m.attr("KERNELS") = nb::make_tuple(
        "log_histogram", "kth_magnitude", "stochastic_prune", "threshold_prune", "dither", "quantize", "row_ranges",
        "largest_and_scale", "quantize_tensor", "quantize_interval", "quantize_samples", "dequantize_rows", "reflect_rows",
        "quantize_codes", "dequantize_codes", "pack_nibbles", "unpack_nibbles", "quantize_blocks", "dequantize_blocks",
        "hadamard", "sparse_backward");
    m.def("compiler", &lograd::compiler);
    m.def("cpu_features", &lograd::cpu_features);
    m.def("isa_level", [] { return std::string(kernels().name); });
    m.def("use_isa", [](const std::string& name) { return lograd::use_isa(name.c_str()) != nullptr; }, nb::arg("name"));
    bind_select(m);
    m.def("stochastic_prune", [](int type, A x, A y, N count, A threshold, A key, int threads, A counts) {
        over_pieces({type, x, y, count, key, threads}, counts, [a = value_at(threshold)](const auto& piece, auto& own) {
            kernels().stochastic_prune(piece, a, own);
        });
    }, without_gil);
    m.def("threshold_prune", [](int type, A x, A y, N count, A threshold, int threads, A counts) {
        over_pieces({type, x, y, count, 0, threads}, counts, [t = value_at(threshold)](const auto& piece, auto& own) {
            kernels().threshold_prune(piece, t, own);
        });
    }, without_gil);
    m.def("dither", [](int type, A x, A y, N count, A step, A key, int threads, A counts) {
        over_pieces({type, x, y, count, key, threads}, counts, [d = value_at(step)](const auto& piece, auto& own) {
            kernels().dither(piece, d, own);
        });
    }, without_gil);
    m.def("quantize", [](int type, A x, A y, N count, A scale, bool integer, int mantissa, int smallest, bool odd_up,
                         float largest, float largest_negative, bool stochastic, A key, int threads, A counts) {
        const lograd::Grid grid{integer, mantissa, smallest, odd_up, largest, largest_negative};
        over_pieces({type, x, y, count, key, threads}, counts,
                    [&, s = value_at(scale)](const auto& piece, auto& own) {
                        kernels().quantize(piece, grid, s, stochastic, own);
                    });
    }, without_gil);
    bind_rows(m);
    bind_sparse(m);
    lograd::bind_blocks(m);
}
