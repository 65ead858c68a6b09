// Householder reflections of groups of rows for one instruction set.

#pragma once

#include <type_traits>

#include "base/elements.isa.h"
#include "kernels/rows/rows.h"

namespace lograd {
namespace LOGRAD_ISA {

// Columns at once: long enough a run of each row for the prefetcher, short enough for the sums to stay in the L1 cache.
constexpr std::size_t kColumns = 1024;

// Element j of x and of y may share an address, others do not: the loops below are free of dependences.
#define LOGRAD_INDEPENDENT _Pragma("GCC ivdep")

template <bool Inverse, class In, class Out>
void reflect_block(const Reflection& r, const In* x, Out* y, std::size_t column, std::size_t count, Counts& counts) {
    alignas(64) float buffer[kColumns], head[kColumns];
    alignas(64) double sum[kColumns], t[kColumns];
    const auto read = [&](std::size_t p) -> const float* {
        const In* from = x + static_cast<std::size_t>(r.order[p]) * r.columns + column;
        if constexpr (std::is_same_v<In, float>) return from;
        widen(from, buffer, count);
        return buffer;
    };
    for (std::size_t begin = 0, end; begin < r.rows; begin = end) {
        for (end = begin + 1; end < r.rows && static_cast<std::size_t>(r.first[end]) == begin;) ++end;
        const double share = r.share[begin], factor = end - begin > 1 ? 1.0 / (1.0 - share) : 0.0;
        for (std::size_t j = 0; j < count; ++j) sum[j] = 0.0;
        for (std::size_t p = begin; p < end; ++p) {
            const float* z = read(p);
            const std::size_t row = static_cast<std::size_t>(r.order[p]);
            const float stretch = Inverse ? 1.0f : r.stretch[p];
            const float low = Inverse ? 0.0f : r.smallest[row], high = Inverse ? 0.0f : r.largest[row];
            std::int32_t clipped = 0;
            for (std::size_t j = 0; j < count; ++j) {
                float value = z[j];
                if constexpr (!Inverse) {
                    clipped += (value < low) | (value > high);
                    value = (value < low ? low : value > high ? high : value) * stretch;
                }
                if (p == begin) head[j] = value;
                sum[j] += value;
            }
            counts.clipped += clipped;
        }
        for (std::size_t j = 0; j < count; ++j) t[j] = (sum[j] * share - head[j]) * factor;
        for (std::size_t p = begin; p < end; ++p) {
            const float* z = read(p);
            const std::size_t row = static_cast<std::size_t>(r.order[p]);
            const float low = Inverse ? 0.0f : r.smallest[row], high = Inverse ? 0.0f : r.largest[row];
            const float stretch = r.stretch[p];
            const double v = p == begin ? share - 1.0 : share;
            Out* to = y + row * r.columns + column;
            float* result = buffer;
            if constexpr (std::is_same_v<Out, float>) result = to;
            LOGRAD_INDEPENDENT
            for (std::size_t j = 0; j < count; ++j) {
                float value = z[j];
                if constexpr (!Inverse) value = (value < low ? low : value > high ? high : value) * stretch;
                value = static_cast<float>(value - v * t[j]);
                if constexpr (Inverse) value /= stretch;
                result[j] = value;
            }
            if constexpr (Inverse) {
                std::int32_t zeros = 0, nans = 0;
                for (std::size_t j = 0; j < count; ++j) zeros += result[j] == 0.0f, nans += result[j] != result[j];
                counts.zeros += zeros, counts.nans += nans;
            }
            if constexpr (!std::is_same_v<Out, float>) narrow(result, to, count);
        }
    }
}

inline void reflect(const Reflection& r, std::size_t begin, std::size_t end, Counts& counts) {
    with_type(r.type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        for (std::size_t column = begin; column < end; column += kColumns) {
            const std::size_t count = end - column < kColumns ? end - column : kColumns;
            if (r.inverse)
                reflect_block<true>(r, static_cast<const float*>(r.x), static_cast<T*>(r.y), column, count, counts);
            else reflect_block<false>(r, static_cast<const T*>(r.x), static_cast<float*>(r.y), column, count, counts);
        }
    });
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
