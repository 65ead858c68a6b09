// Gradients of a learned range for one instruction set: one pass over g and x.
//
// No multiplication may be fused with an addition here (-ffp-contract=off): every operation rounds as it is written.

#pragma once

#include <type_traits>

#include "base/elements.isa.h"
#include "kernels/learned/learned.h"

namespace lograd {
namespace LOGRAD_ISA {

// Element i of a block is added to lane i % 16, in double.
constexpr std::size_t kRangeLanes = 16;
// How far ahead of the arithmetic memory is asked for, in elements.
constexpr std::size_t kRangeAhead = 512;

typedef float RangeF __attribute__((vector_size(W * 2)));
typedef double RangeD __attribute__((vector_size(W * 4)));

struct RangeBlock {
    const float *g, *x;
    float* d_x;
    std::size_t count;  // whole lanes
};

// The sum over one block; `ahead` asks for what comes behind it.
template <bool Streams> LOGRAD_INLINE double range_block(const RangeBlock& b, F factor, F low, F high, bool ahead) {
    constexpr std::size_t vectors = kRangeLanes / W, halves = 2 * vectors;
    RangeD lanes[halves] = {};
    for (std::size_t k = 0; k < b.count; k += kRangeLanes) {
        if (ahead) __builtin_prefetch(b.g + k + kRangeAhead), __builtin_prefetch(b.x + k + kRangeAhead);
        LOGRAD_UNROLL
        for (std::size_t v = 0; v < vectors; ++v) {
            const std::size_t at = k + v * W;
            const F g = load<F>(b.g + at), steps = load<F>(b.x + at) * factor;
            const I inside = (steps >= low) & (steps <= high);
            const F d_x = g * select(inside, F{} + 1.0f, F{});
            if (Streams) stream(b.d_x + at, d_x);
            else store(b.d_x + at, d_x);
            // A NaN stays one: `larger` and `smaller` give their second argument then.
            const F level = smaller(high, larger(low, steps));
            // Levels are below 2^8, and next to 1.5 x 2^23 floats are whole numbers: ties go to even.
            const F rounded = (level + 0x1.8p23f) - 0x1.8p23f;
            const F slope = (rounded - bits<F>(bits<I>(steps) & inside)) * g;
            RangeF half[2];
            std::memcpy(half, &slope, sizeof slope);
            lanes[2 * v] += __builtin_convertvector(half[0], RangeD);
            lanes[2 * v + 1] += __builtin_convertvector(half[1], RangeD);
        }
    }
    double all[kRangeLanes];
    std::memcpy(all, lanes, sizeof all);
    for (std::size_t half = kRangeLanes / 2; half > 0; half /= 2)
        for (std::size_t k = 0; k < half; ++k) all[k] += all[k + half];
    return all[0];
}

template <class T> void range_gradients_of(const RangeGradients& task, bool past_cache, double* sums) {
    const F factor = F{} + task.factor, low = F{} + task.low, high = F{} + task.high;
    const T *g = static_cast<const T*>(task.g), *x = static_cast<const T*>(task.x);
    T* d_x = static_cast<T*>(task.d_x);
    alignas(64) float wide[3][kRangeBlock];
    for (std::size_t at = 0; at < task.count; at += kRangeBlock) {
        const std::size_t count = task.count - at < kRangeBlock ? task.count - at : kRangeBlock;
        double& sum = sums[at / kRangeBlock];
        if constexpr (std::is_same_v<T, float>) {
            if (count == kRangeBlock) {
                const RangeBlock block{g + at, x + at, d_x + at, count};
                sum = past_cache ? range_block<true>(block, factor, low, high, true)
                                 : range_block<false>(block, factor, low, high, true);
                continue;
            }
        }
        const std::size_t whole = (count + kRangeLanes - 1) / kRangeLanes * kRangeLanes;
        std::memset(wide[0] + count, 0, (whole - count) * sizeof(float));  // zeros add nothing
        std::memset(wide[1] + count, 0, (whole - count) * sizeof(float));
        widen(g + at, wide[0], count);
        widen(x + at, wide[1], count);
        sum = range_block<false>({wide[0], wide[1], wide[2], whole}, factor, low, high, false);
        narrow(wide[2], d_x + at, count);
    }
}

inline void range_gradients(const RangeGradients& task, bool past_cache, double* sums) {
    with_type(task.type,
              [&](auto* null) { range_gradients_of<std::remove_pointer_t<decltype(null)>>(task, past_cache, sums); });
}

inline constexpr LearnedKernels kLearned{range_gradients};

}  // namespace LOGRAD_ISA
}  // namespace lograd
