// The random Hadamard transform for one instruction set.

#pragma once

#include <type_traits>

#include "base/elements.isa.h"
#include "kernels/hadamard/hadamard.h"
#include "rounding/random.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

inline I lane_numbers() {
    I lanes{};
    for (std::size_t i = 0; i < W; ++i) lanes[i] = static_cast<std::int32_t>(i);
    return lanes;
}

// Lane i of the result is lane i ^ Distance of v.
template <int Distance> inline F exchanged(F v) {
#if defined(__GNUC__) && !defined(__clang__)
    return __builtin_shuffle(v, lane_numbers() ^ Distance);
#else
    F out{};
    for (std::size_t i = 0; i < W; ++i) out[i] = v[i ^ Distance];
    return out;
#endif
}

// One stage within vectors: (a, b) at this distance become (a + b, a - b).  a - b is a + (-b), the very same bits.
template <int Distance, std::size_t Vectors> inline void stage(F* v) {
    if constexpr (Distance < static_cast<int>(W)) {
        const U flip = bits<U>((lane_numbers() & Distance) != 0) & 0x80000000u;
        for (std::size_t i = 0; i < Vectors; ++i) v[i] = exchanged<Distance>(v[i]) + bits<F>(bits<U>(v[i]) ^ flip);
        stage<2 * Distance, Vectors>(v);
    }
}

// N elements, in stages of distance 1, 2, 4, ...
template <std::size_t N> inline void walsh_hadamard(F* v) {
    constexpr std::size_t vectors = N / W;
    stage<1, vectors>(v);
    for (std::size_t distance = 1; distance < vectors; distance *= 2) {
        for (std::size_t i = 0; i < vectors; ++i) {
            if (i & distance) continue;
            const F a = v[i], b = v[i + distance];
            v[i] = a + b;
            v[i + distance] = a - b;
        }
    }
}

template <std::size_t N, class T> void hadamard_as(const HadamardPiece& piece, std::size_t first, std::size_t last) {
    static_assert(N % W == 0);
    // The nearest float to 1 / sqrt(N), exact where N is a power of 4.
    constexpr float factor = N == 16   ? 0.25f
                             : N == 64 ? 0.125f
                                       : static_cast<float>(N == 32 ? 0.17677669529663687 : 0.08838834764831843);
    const Hadamard& task = piece.task;
    const T* x = static_cast<const T*>(task.x);
    T* y = static_cast<T*>(task.y);
    const std::size_t per_row = task.columns / N;
    const U shifts = bits<U>(31 - lane_numbers());
    alignas(64) float in[N], out[N];
    for (std::size_t block = first; block < last; ++block) {
        const std::size_t column = block % per_row * N;
        const auto flip = [&](std::size_t i) {
            if (piece.signs == nullptr) return U{};
            const std::size_t at = column + i * W;
            return ((U{} + (piece.signs[at / 32] >> at % 32)) << shifts) & 0x80000000u;
        };
        F v[N / W];
        widen(x + block * N, in, N);
        for (std::size_t i = 0; i < N / W; ++i) {
            v[i] = load<F>(in + i * W);
            if (!task.inverse) v[i] = bits<F>(bits<U>(v[i]) ^ flip(i));
        }
        walsh_hadamard<N>(v);
        for (std::size_t i = 0; i < N / W; ++i) {
            F result = v[i] * factor;
            if (task.inverse) result = bits<F>(bits<U>(result) ^ flip(i));
            // Which NaN an addition returns depends on the CPU; one NaN for all.
            result = select(result == result, result, F{} + __builtin_nanf(""));
            if (std::is_same_v<T, float> && piece.past_cache)
                stream(reinterpret_cast<float*>(y + block * N) + i * W, result);
            else store(out + i * W, result);
        }
        if (!(std::is_same_v<T, float> && piece.past_cache)) narrow(out, y + block * N, N);
    }
}

inline void hadamard(const HadamardPiece& piece, std::size_t first, std::size_t last) {
    with_type(piece.task.type, [&](auto* null) {
        using T = std::remove_pointer_t<decltype(null)>;
        switch (piece.task.block) {
            case 16: return hadamard_as<16, T>(piece, first, last);
            case 32: return hadamard_as<32, T>(piece, first, last);
            case 64: return hadamard_as<64, T>(piece, first, last);
            default: return hadamard_as<128, T>(piece, first, last);
        }
    });
}

// One bit for each column: bit i mod 32 of word i / 32 mod 4 of block i / 128 of stream 2.
inline void hadamard_signs(std::uint64_t seed, std::size_t blocks, std::uint32_t* words) {
    for (std::size_t block = 0; block < blocks; ++block) {
        const Words four = philox(block, 2, seed);
        std::memcpy(words + 4 * block, four.w, sizeof four.w);
    }
}

inline constexpr HadamardKernels kHadamard{hadamard_signs, hadamard};

}  // namespace LOGRAD_ISA
}  // namespace lograd
