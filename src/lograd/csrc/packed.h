// Values to codes of at most 8 bits and back, compiled once per instruction set; equal to ops/packed.py bit for bit.

#pragma once

#include "coding.h"
#include "elementwise.h"

namespace lograd {
namespace LOGRAD_ISA {

// What the lanes counted.  Padding is zero, and was counted as such.
inline void add_lanes(I zeros, I nans, I clipped, std::size_t padding, Counts& counts) {
    for (std::size_t i = 0; i < W; ++i) counts.zeros += zeros[i], counts.nans += nans[i], counts.clipped += clipped[i];
    counts.zeros -= static_cast<std::int64_t>(padding);
}

// Lanes whose upper 16 random bits did not decide: all 48 bits do.
__attribute__((noinline)) inline I settled(I whole, F steps, I tied, const std::uint16_t* random, std::uint64_t index,
                                           std::uint64_t seed) {
    for (std::size_t i = 0; i < W; ++i)
        if (tied[i]) whole[i] = static_cast<std::int32_t>(round_exactly(steps[i], random[i], index + i, seed));
    return whole;
}

// A vector on the grid of a format: y is rounded to `steps` steps, in the binade 2^e given by its bits, and not yet cut
// off at the largest value.
struct Rounded {
    F y, limit;
    I steps;
    U binade;
};

// The constants of a format, in registers while a chunk is rounded.
template <bool Stochastic> struct OnGrid {
    const F largest, largest_negative, bound, smallest_normal;
    const bool integer, parity, odd_up;
    const U mantissa, inverse_of;
    const I code_shift, smallest;  // of a code: the mantissa bits, and e of the first binade as it is in bits
    const I most, most_negative, negative_base, negative_zero;
    const bool twos_complement;
    const F zero;  // adding -0.0 changes nothing; adding 0.0 turns -0.0 into 0.0

    explicit OnGrid(const Coding& c)
        : largest(F{} + c.grid.largest), largest_negative(F{} + c.grid.largest_negative),
          bound(larger(largest, largest_negative)), smallest_normal(F{} + power_of_two(c.grid.smallest_exponent)),
          integer(c.grid.integer), parity(!integer && c.grid.mantissa == 0), odd_up(c.grid.odd_exponents_up),
          mantissa(U{} + (static_cast<std::uint32_t>(c.grid.mantissa) << 23)),
          inverse_of(2u * kOne + mantissa + (Stochastic ? 16u << 23 : 0u)), code_shift(I{} + c.grid.mantissa),
          smallest(I{} + (127 + c.grid.smallest_exponent)), most(I{} + c.largest), most_negative(I{} + c.largest_negative),
          negative_base(I{} + c.negative_base), negative_zero(I{} + c.negative_zero),
          twos_complement(c.negative_step < 0), zero(bits<F>(U{} + (c.negative_zero ? 0x80000000u : 0u))) {}

    // `index` is the random index of lane 0.
    Rounded round(F y, const std::uint16_t* random, std::uint64_t index, std::uint64_t seed) const {
        const F inside = smaller(magnitude(y), bound);  // NaN becomes the bound; who calls puts it back
        U binade = U{} + kOne;
        if (!integer) binade = bits<U>(larger(inside, smallest_normal)) & 0x7f800000u;
        const F exact = inside * bits<F>(inverse_of - binade);
        I steps;
        if constexpr (Stochastic) {  // 2^16 times the steps: see round_exactly
            const I sum = __builtin_convertvector(exact, I) + random_ints(random), tied = (sum & 65535) == 65535;
            steps = sum >> 16;
            if (__builtin_expect(any(tied), 0)) steps = settled(steps, exact * 0x1p-16f, tied, random, index, seed);
        } else {
            steps = __builtin_convertvector((exact + 0x1p23f) - 0x1p23f, I);  // to nearest, ties to even
            if (parity) {
                // The tie 1.5 lies between exponents e and e + 1, and the even code decides.
                const I odd = ((binade >> 23) & 1u) == 0u;  // e itself: the bits hold e + 127
                const I stays = (exact == 1.5f) & (odd_up ? ~odd : odd);
                steps = stays ? I{} + 1 : steps;
            }
        }
        return {y, select(bits<I>(y) < 0, largest_negative, largest), steps, binade};
    }

    F value(const Rounded& r) const {
        const F m = smaller(__builtin_convertvector(r.steps, F) * bits<F>(r.binade - mantissa), r.limit);
        return bits<F>(bits<U>(m) | sign(r.y)) + zero;
    }

    // `steps` of a normal number holds the hidden bit, which carries the missing 1 into the exponent field.
    I code(const Rounded& r) const {
        I c = r.steps;
        if (!integer) c += (bits<I>(r.binade >> 23) - smallest) << code_shift;
        const I negative = bits<I>(r.y) < 0, end = negative ? most_negative : most;
        c = c < end ? c : end;
        const I below = twos_complement ? negative_base - c : negative_base + c;
        return negative ? ((c == 0) ? negative_zero : below) : c;
    }
    I is_zero(I code) const { return (code == 0) | (code == negative_zero); }
};

template <bool Stochastic, class T>
void quantize_codes_as(const Piece& p, const Coding& coding, float scale, Counts& counts) {
    I zeros{}, nans{}, clipped{};
    std::size_t padding = 0;
    for_chunks<Stochastic>(
        static_cast<const T*>(p.x), static_cast<Code*>(p.y), p.count, p.index, p.seed, Writes::kBuffered,
        [&](auto, const float* __restrict in, auto* out, const std::uint16_t* random, std::uint64_t first,
            std::size_t valid) {
            const OnGrid<Stochastic> grid(coding);
            const I nan = I{} + coding.nan;
            I zero{}, unknown{}, outside{};
            for (std::size_t j = 0; j < kChunk; j += 4 * W) {
                I codes[4];
                for (std::size_t k = 0; k < 4; ++k) {
                    const std::size_t at = j + k * W;
                    const F x = load<F>(in + at), y = x * scale;
                    const Rounded rounded = grid.round(y, random + at, first + at, p.seed);
                    const I known = y == y;
                    codes[k] = known ? grid.code(rounded) : nan;
                    zero -= known & grid.is_zero(codes[k]);
                    unknown -= ~known;
                    outside -= magnitude(y) > rounded.limit;
                }
                if constexpr (std::is_same_v<decltype(out), Code*>) store_bytes(codes, out + j);
                else for (std::size_t k = 0; k < 4; ++k) store(out + j + k * W, __builtin_convertvector(codes[k], F));
            }
            zeros += zero, nans += unknown, clipped += outside;
            padding += kChunk - valid;
        });
    add_lanes(zeros, nans, clipped, padding, counts);
}

inline void quantize_codes(const Piece& p, const Coding& coding, float scale, bool stochastic, Counts& counts) {
    with_type(p.type, [&](auto* null) {
        using T = std::remove_pointer_t<decltype(null)>;
        stochastic ? quantize_codes_as<true, T>(p, coding, scale, counts)
                   : quantize_codes_as<false, T>(p, coding, scale, counts);
    });
}

inline void dequantize_codes(const std::uint8_t* codes, Type type, void* y, std::size_t count, const Coding& coding,
                             float scale) {
    float values[256];
    for (std::size_t code = 0; code < 256; ++code) values[code] = coding.values[code] / scale;
    with_type(type, [&](auto* null) {
        auto* to = static_cast<decltype(null)>(y);
        alignas(64) float out[kChunk];
        for (std::size_t done = 0; done < count; done += kChunk) {
            const std::size_t n = count - done < kChunk ? count - done : kChunk;
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

}  // namespace LOGRAD_ISA
}  // namespace lograd
