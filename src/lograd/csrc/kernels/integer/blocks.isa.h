// Tiles whose sums are scaled block by block.

#pragma once

#include "kernels/integer/tile.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

#if defined(__AVX512VNNI__)
constexpr std::size_t kBlockRows = 6;  // with both kinds of sums in registers
#else
constexpr std::size_t kBlockRows = kMR;
#endif

// By a tile of integers for each block.
template <void (*tile)(const Tile&)> void block_tile(const BlockTile& t) {
    alignas(64) std::int32_t sums[kMR * kNR];
    const std::uint8_t* rows[kMR];
    for (std::size_t r = 0; r < kMR; ++r) rows[r] = t.rows[r < kBlockRows ? r : kBlockRows - 1];
    std::memset(t.sums, 0, kBlockRows * kNR * sizeof(float));
    for (std::size_t block = 0; block < t.blocks; ++block) {
        std::size_t done = 0;
        do {
            const auto first = static_cast<std::ptrdiff_t>(block * t.units + done);
            const std::size_t units = t.units - done < t.steps ? t.units - done : t.steps;
            const Segment group{t.a_step * first, t.b_step * first, units, 1};
            tile({rows, t.panel, &group, 1, t.a_step, t.b_step, sums, done != 0});
            done += units;
        } while (done < t.units);
        for (std::size_t r = 0; r < kBlockRows; ++r) {
            const float scale = t.a_scales[r][block];
            for (std::size_t c = 0; c < kNR; c += W) {
                const std::size_t at = r * kNR + c, column = block * kNR + c;
                const U exact = load<U>(sums + at) - load<U>(t.offsets + column);
                const F part = __builtin_convertvector(bits<I>(exact), F) * scale * load<F>(t.b_scales + column);
                store(t.sums + at, load<F>(t.sums + at) + part);
            }
        }
    }
}

#if defined(__AVX512VNNI__)
inline void byte_block_tile(const BlockTile& t) {
    F sums[kBlockRows][2] = {};
    const std::uint8_t* rows[kBlockRows];
    LOGRAD_UNROLL
    for (std::size_t r = 0; r < kBlockRows; ++r) rows[r] = t.rows[r];
    const std::uint8_t* b = t.panel;
    std::ptrdiff_t at = 0;
    for (std::size_t block = 0; block < t.blocks; ++block) {
        Register exact[kBlockRows][2];
        const std::int32_t* offsets = t.offsets + block * kNR;
        const U first = U{} - load<U>(offsets), second = U{} - load<U>(offsets + W);
        LOGRAD_UNROLL
        for (std::size_t r = 0; r < kBlockRows; ++r)
            exact[r][0] = bits<Register>(first), exact[r][1] = bits<Register>(second);
        for (std::size_t unit = t.units; unit != 0; --unit, at += t.a_step, b += t.b_step) {
            const Register b0 = load<Register>(b), b1 = load<Register>(b + 4 * W);
            LOGRAD_UNROLL
            for (std::size_t r = 0; r < kBlockRows; ++r) {
                const Register a = broadcast(rows[r] + at);
                exact[r][0] = ByBytes::multiply(exact[r][0], a, b0);
                exact[r][1] = ByBytes::multiply(exact[r][1], a, b1);
            }
        }
        const F scale0 = load<F>(t.b_scales + block * kNR), scale1 = load<F>(t.b_scales + block * kNR + W);
        LOGRAD_UNROLL
        for (std::size_t r = 0; r < kBlockRows; ++r) {
            const F scale = F{} + t.a_scales[r][block];
            sums[r][0] += __builtin_convertvector(bits<I>(exact[r][0]), F) * scale * scale0;
            sums[r][1] += __builtin_convertvector(bits<I>(exact[r][1]), F) * scale * scale1;
        }
    }
    LOGRAD_UNROLL
    for (std::size_t r = 0; r < kBlockRows; ++r)
        store(t.sums + r * kNR, sums[r][0]), store(t.sums + r * kNR + W, sums[r][1]);
}
#elif defined(__AVX2__)
inline void byte_block_tile(const BlockTile& t) { block_tile<byte_tile>(t); }
#endif

inline void block_epilogue(const BlockEpilogue& f) {
    for (std::size_t r = 0; r < f.rows; ++r) {
        float* out = f.out + r * f.out_stride;
        for (std::size_t c = 0; c < f.columns; c += W) {
            F value = load<F>(f.sums + r * kNR + c) * f.scale;
            const std::size_t left = f.columns - c < W ? f.columns - c : W;
            if (f.bias != nullptr) {
                F bias{};
                std::memcpy(&bias, f.bias + c, left * sizeof(float));
                value += bias;
            }
            if (left < W) std::memcpy(out + c, &value, left * sizeof(float));
            else if (f.past_cache) stream(out + c, value);
            else store(out + c, value);
        }
    }
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
