// Codes of at most 8 bits for one instruction set.

#pragma once

#include "kernels/chunks.isa.h"
#include "kernels/codes/codes.h"
#include "rounding/grid.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// What the lanes of a chunk counted.
struct LaneCounts {
    I zeros{}, nans{}, clipped{};

    void add(const LaneCounts& own) { zeros += own.zeros, nans += own.nans, clipped += own.clipped; }
    // Padding is zero, and was counted as such.
    void add_to(Counts& counts, std::size_t padding) const {
        for (std::size_t i = 0; i < W; ++i)
            counts.zeros += zeros[i], counts.nans += nans[i], counts.clipped += clipped[i];
        counts.zeros -= static_cast<std::int64_t>(padding);
    }
};

// Codes of a chunk, as bytes where it is whole, else as floats that are narrowed later.
inline void store_codes(const I* codes, Code* out) { store_bytes(codes, out); }
inline void store_codes(const I* codes, float* out) {
    for (std::size_t k = 0; k < 4; ++k) store(out + k * W, __builtin_convertvector(codes[k], F));
}

template <bool Stochastic, class T>
void quantize_codes_as(const Piece& p, const Coding& coding, float scale, Counts& counts) {
    LaneCounts total;
    std::size_t padding = 0;
    for_chunks<Stochastic>(static_cast<const T*>(p.x), static_cast<Code*>(p.y), p.count, p.index, p.seed,
                           Writes::kBuffered,
                           [&](auto, const float* __restrict in, auto* out, const std::uint16_t* random,
                               std::uint64_t first, std::size_t valid) {
        total.add(round_chunk<Stochastic>([&](auto& rule) {
            const OnGrid<std::remove_reference_t<decltype(rule)>> grid(coding.grid);
            const Coder coder(coding);
            const I nan = I{} + coding.nan;
            LaneCounts own;
            for (std::size_t j = 0; j < kChunk; j += 4 * W) {
                I codes[4];
                for (std::size_t k = 0; k < 4; ++k) {
                    const std::size_t at = j + k * W;
                    const F y = load<F>(in + at) * scale, m = magnitude(y);
                    const auto rounded = grid.round(m, rule, {random + at, first + at, p.seed});
                    const I known = y == y;
                    codes[k] = known ? coder.code(rounded, y) : nan;
                    own.zeros -= known & coder.is_zero(codes[k]);
                    own.nans -= ~known;
                    own.clipped -= m > grid.limit(y);
                }
                store_codes(codes, out + j);
            }
            return own;
        }));
        padding += kChunk - valid;
    });
    total.add_to(counts, padding);
}

inline void quantize_codes(const Piece& p, const Coding& coding, float scale, bool stochastic, Counts& counts) {
    with_type(p.type, [&](auto* null) {
        using T = std::remove_pointer_t<decltype(null)>;
        stochastic ? quantize_codes_as<true, T>(p, coding, scale, counts)
                   : quantize_codes_as<false, T>(p, coding, scale, counts);
    });
}

inline void dequantize_codes(const Piece& p, const Coding& coding, float scale) {
    const auto* codes = static_cast<const std::uint8_t*>(p.x);
    float values[256];
    for (std::size_t code = 0; code < 256; ++code) values[code] = coding.values[code] / scale;
    with_type(p.type, [&](auto* null) {
        auto* to = static_cast<decltype(null)>(p.y);
        alignas(64) float out[kChunk];
        for (std::size_t done = 0; done < p.count; done += kChunk) {
            const std::size_t n = p.count - done < kChunk ? p.count - done : kChunk;
            for (std::size_t i = 0; i < n; ++i) out[i] = values[codes[done + i]];
            narrow(out, to + done, n);
        }
    });
}

inline bool pack_nibbles(const std::uint8_t* codes, std::uint8_t* packed, std::size_t rows, std::size_t columns) {
    unsigned seen = 0;
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t i = 0; i < columns / 2; ++i) {
            const unsigned low = codes[2 * i], high = codes[2 * i + 1];
            seen |= low | high;
            packed[i] = static_cast<std::uint8_t>(low | high << 4);
        }
        if (columns % 2) seen |= packed[columns / 2] = codes[columns - 1];
        codes += columns;
        packed += (columns + 1) / 2;
    }
    return seen < 16;
}

inline void unpack_nibbles(const std::uint8_t* packed, std::uint8_t* codes, std::size_t rows, std::size_t columns) {
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t i = 0; i < columns / 2; ++i) {
            codes[2 * i] = packed[i] & 15;
            codes[2 * i + 1] = packed[i] >> 4;
        }
        if (columns % 2) codes[columns - 1] = packed[columns / 2] & 15;
        codes += columns;
        packed += (columns + 1) / 2;
    }
}

inline constexpr CodeKernels kCodes{quantize_codes, dequantize_codes, pack_nibbles, unpack_nibbles};

}  // namespace LOGRAD_ISA
}  // namespace lograd
