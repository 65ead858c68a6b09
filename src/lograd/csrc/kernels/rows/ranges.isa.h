// The range of a row for one instruction set.

#pragma once

#include <type_traits>

#include "kernels/chunks.isa.h"
#include "kernels/rows/rows.h"

namespace lograd {
namespace LOGRAD_ISA {

// A comparison with NaN is false, so NaN never becomes a bound; infinities do, and are sorted out by a second look.
template <class T> void range_of(const T* x, std::size_t n, Range& range) {
    constexpr float kInfinity = __builtin_inff();
    F low0 = F{} + kInfinity, low1 = low0, high0 = F{} - kInfinity, high1 = high0;
    I nan{};
    alignas(64) float buffer[kChunk];
    for (std::size_t done = 0; done < n; done += kChunk) {
        const std::size_t count = n - done < kChunk ? n - done : kChunk;
        const float* in = buffer;
        if (std::is_same_v<T, float> && count == kChunk) {
            in = reinterpret_cast<const float*>(x + done);
        } else {
            widen(x + done, buffer, count);
            for (std::size_t j = count; j % (2 * W) != 0; ++j) buffer[j] = buffer[count - 1];
        }
        for (std::size_t j = 0; j < count; j += 2 * W) {
            const F a = load<F>(in + j), b = load<F>(in + j + W);
            low0 = smaller(a, low0), low1 = smaller(b, low1);
            high0 = larger(a, high0), high1 = larger(b, high1);
            nan |= either_nan(a, b);
        }
    }
    // Halves against halves: a chain of comparisons would cost more than a short row.
    alignas(64) float lows[W], highs[W];
    store(lows, smaller(low0, low1)), store(highs, larger(high0, high1));
    for (std::size_t half = W / 2; half != 0; half /= 2) {
        for (std::size_t k = 0; k < half; ++k) {
            lows[k] = lows[k + half] < lows[k] ? lows[k + half] : lows[k];
            highs[k] = highs[k + half] > highs[k] ? highs[k + half] : highs[k];
        }
    }
    float low = lows[0], high = highs[0];
    if (low == -kInfinity || high == kInfinity) {
        low = kInfinity, high = -kInfinity;
        for (std::size_t i = 0; i < n; ++i) {
            float value;
            widen(x + i, &value, 1);
            if (!(__builtin_fabsf(value) < kInfinity)) continue;
            low = value < low ? value : low, high = value > high ? value : high;
        }
    }
    range = {low, high, any(nan)};
}

inline void range(Type type, const void* x, std::size_t count, Range& out) {
    with_type(type, [&](auto* tag) { range_of(static_cast<decltype(tag)>(const_cast<void*>(x)), count, out); });
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
