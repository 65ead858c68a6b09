// Tiles of one instruction set.  All of them give the same sums: integers, exact modulo 2^32.

#pragma once

#include "base/vector.isa.h"
#include "kernels/integer/tile.h"

namespace lograd {
namespace LOGRAD_ISA {

#if defined(__AVX512BW__)
constexpr std::size_t kTileRows = 8;
typedef __m512i Register;
inline Register broadcast(const std::uint8_t* p) {
    int v;
    std::memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}
inline Register zero() { return _mm512_setzero_si512(); }
inline Register add32(Register a, Register b) { return _mm512_add_epi32(a, b); }
inline Register add16(Register a, Register b) { return _mm512_add_epi16(a, b); }
inline Register pairs(Register a, Register b) { return _mm512_madd_epi16(a, b); }
inline Register byte_pairs(Register a, Register b) { return _mm512_maddubs_epi16(a, b); }
inline Register ones16() { return _mm512_set1_epi16(1); }
#elif defined(__AVX2__)
constexpr std::size_t kTileRows = 6;
typedef __m256i Register;
inline Register broadcast(const std::uint8_t* p) {
    int v;
    std::memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}
inline Register zero() { return _mm256_setzero_si256(); }
inline Register add32(Register a, Register b) { return _mm256_add_epi32(a, b); }
inline Register pairs(Register a, Register b) { return _mm256_madd_epi16(a, b); }
#else
constexpr std::size_t kTileRows = 4;
#endif
constexpr std::size_t kTileColumns = 2 * W;

#if defined(__AVX2__)

// acc + a b, over a unit.
struct ByWords {
    static LOGRAD_INLINE Register multiply(Register acc, Register a, Register b) { return add32(acc, pairs(a, b)); }
};
#if defined(__AVX512VNNI__)
struct ByBytes {
    static LOGRAD_INLINE Register multiply(Register acc, Register a, Register b) {
        return _mm512_dpbusd_epi32(acc, a, b);
    }
};
#elif defined(__AVXVNNI__)
struct ByBytes {
    static LOGRAD_INLINE Register multiply(Register acc, Register a, Register b) {
        return _mm256_dpbusd_avx_epi32(acc, a, b);
    }
};
#endif

// A tile whose sums stay in 32-bit registers.
template <class By> void wide_tile(const Tile& t) {
    Register sums[kTileRows][2];
    const std::uint8_t* rows[kTileRows];
    LOGRAD_UNROLL
    for (std::size_t r = 0; r < kTileRows; ++r) {
        rows[r] = t.rows[r];
        LOGRAD_UNROLL
        for (std::size_t v = 0; v < 2; ++v)
            sums[r][v] = t.add ? load<Register>(t.sums + r * kTileColumns + v * W) : zero();
    }
    for (const Segment *s = t.segments, *end = s + t.count; s != end; ++s) {
        const std::uint8_t* b = t.panel + s->b;
        std::ptrdiff_t at = s->a;
        for (std::size_t unit = s->units; unit != 0; --unit, at += t.a_step, b += t.b_step) {
            const Register b0 = load<Register>(b), b1 = load<Register>(b + 4 * W);
            LOGRAD_UNROLL
            for (std::size_t r = 0; r < kTileRows; ++r) {
                const Register a = broadcast(rows[r] + at);
                sums[r][0] = By::multiply(sums[r][0], a, b0), sums[r][1] = By::multiply(sums[r][1], a, b1);
            }
        }
    }
    LOGRAD_UNROLL
    for (std::size_t r = 0; r < kTileRows; ++r) {
        LOGRAD_UNROLL
        for (std::size_t v = 0; v < 2; ++v) store(t.sums + r * kTileColumns + v * W, sums[r][v]);
    }
}

#if defined(__AVX512BW__) && !defined(__AVX512VNNI__)
// Up to `steps` units in 16-bit sums, which are then added to those of 32 bits.
inline void byte_run(const Tile& t, const std::uint8_t* const* rows, std::ptrdiff_t at, const std::uint8_t* b,
                     std::size_t units, bool add) {
    Register sums[kTileRows][2];
    {
        const Register b0 = load<Register>(b), b1 = load<Register>(b + 4 * W);
        LOGRAD_UNROLL
        for (std::size_t r = 0; r < kTileRows; ++r) {
            const Register a = broadcast(rows[r] + at);
            sums[r][0] = byte_pairs(a, b0), sums[r][1] = byte_pairs(a, b1);
        }
    }
    for (at += t.a_step, b += t.b_step; --units != 0; at += t.a_step, b += t.b_step) {
        const Register b0 = load<Register>(b), b1 = load<Register>(b + 4 * W);
        LOGRAD_UNROLL
        for (std::size_t r = 0; r < kTileRows; ++r) {
            const Register a = broadcast(rows[r] + at);
            const Register first = byte_pairs(a, b0), second = byte_pairs(a, b1);
            sums[r][0] = add16(sums[r][0], first), sums[r][1] = add16(sums[r][1], second);
        }
    }
    const Register ones = ones16();
    LOGRAD_UNROLL
    for (std::size_t r = 0; r < kTileRows; ++r) {
        LOGRAD_UNROLL
        for (std::size_t v = 0; v < 2; ++v) {
            std::int32_t* to = t.sums + r * kTileColumns + v * W;
            const Register wide = pairs(sums[r][v], ones);
            store(to, add ? add32(wide, load<Register>(to)) : wide);
        }
    }
}
#elif defined(__AVX2__) && !defined(__AVXVNNI__)
// The same in one block: GCC would keep some of the twelve sums in memory, which costs half of the speed.
#define LOGRAD_ROW(pointer, s0, s1)          \
    "vpbroadcastd (%[" pointer               \
    "],%[at]), %%ymm15\n"                    \
    "vpmaddubsw %%ymm12, %%ymm15, %%ymm14\n" \
    "vpmaddubsw %%ymm13, %%ymm15, %%ymm15\n" \
    "vpaddw %%ymm14, %%ymm" s0 ", %%ymm" s0  \
    "\n"                                     \
    "vpaddw %%ymm15, %%ymm" s1 ", %%ymm" s1 "\n"
#define LOGRAD_FIRST(pointer, s0, s1)       \
    "vpbroadcastd (%[" pointer              \
    "],%[at]), %%ymm15\n"                   \
    "vpmaddubsw %%ymm12, %%ymm15, %%ymm" s0 \
    "\n"                                    \
    "vpmaddubsw %%ymm13, %%ymm15, %%ymm" s1 "\n"
#define LOGRAD_ROWS(each)                                                                                    \
    each("r0", "0", "1") each("r1", "2", "3") each("r2", "4", "5") each("r3", "6", "7") each("r4", "8", "9") \
        each("r5", "10", "11")
#define LOGRAD_WIDEN(sum, place)                       \
    "vpmaddwd %%ymm12, %%ymm" sum ", %%ymm" sum        \
    "\n"                                               \
    "vpaddd " place "(%[to]), %%ymm" sum ", %%ymm" sum \
    "\n"                                               \
    "vmovdqu %%ymm" sum ", " place "(%[to])\n"
inline void byte_run(const Tile& t, const std::uint8_t* const* rows, std::ptrdiff_t at, const std::uint8_t* b,
                     std::size_t units, bool add) {
    if (!add) std::memset(t.sums, 0, kTileRows * kTileColumns * sizeof(std::int32_t));
    asm volatile(
        "vmovdqu (%[b]), %%ymm12\n"
        "vmovdqu 32(%[b]), %%ymm13\n"  //
        LOGRAD_ROWS(LOGRAD_FIRST)
        "jmp 2f\n"
        ".p2align 5\n"
        "1:\n"
        "vmovdqu (%[b]), %%ymm12\n"
        "vmovdqu 32(%[b]), %%ymm13\n"  //
        LOGRAD_ROWS(LOGRAD_ROW)
        "2:\n"
        "add %[a_step], %[at]\n"
        "add %[b_step], %[b]\n"
        "dec %[units]\n"
        "jnz 1b\n"
        "vpcmpeqw %%ymm12, %%ymm12, %%ymm12\n"
        "vpsrlw $15, %%ymm12, %%ymm12\n"  // ones
        LOGRAD_WIDEN("0", "0") LOGRAD_WIDEN("1", "32") LOGRAD_WIDEN("2", "64") LOGRAD_WIDEN("3", "96")
        LOGRAD_WIDEN("4", "128") LOGRAD_WIDEN("5", "160") LOGRAD_WIDEN("6", "192") LOGRAD_WIDEN("7", "224")
        LOGRAD_WIDEN("8", "256") LOGRAD_WIDEN("9", "288") LOGRAD_WIDEN("10", "320") LOGRAD_WIDEN("11", "352")
        : [at] "+r"(at), [b] "+r"(b), [units] "+r"(units)
        : [r0] "r"(rows[0]), [r1] "r"(rows[1]), [r2] "r"(rows[2]), [r3] "r"(rows[3]), [r4] "r"(rows[4]),
          [r5] "r"(rows[5]), [a_step] "m"(t.a_step), [b_step] "m"(t.b_step), [to] "r"(t.sums)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
          "xmm13", "xmm14", "xmm15", "cc", "memory");
}
#undef LOGRAD_ROW
#undef LOGRAD_FIRST
#undef LOGRAD_ROWS
#undef LOGRAD_WIDEN
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kExactBytes = true;
inline void byte_tile(const Tile& t) { wide_tile<ByBytes>(t); }
#else
constexpr bool kExactBytes = false;
inline void byte_tile(const Tile& t) {
    bool add = t.add;
    for (const Segment *s = t.segments, *end = s + t.count; s != end; ++s) {
        std::ptrdiff_t at = s->a;
        const std::uint8_t* b = t.panel + s->b;
        for (std::size_t left = s->units; left != 0;) {
            const std::size_t units = left < t.steps ? left : t.steps;
            byte_run(t, t.rows, at, b, units, add);
            add = true;
            at += t.a_step * static_cast<std::ptrdiff_t>(units), b += t.b_step * static_cast<std::ptrdiff_t>(units);
            left -= units;
        }
    }
    if (!add) std::memset(t.sums, 0, kTileRows * kTileColumns * sizeof(std::int32_t));
}
#endif
inline void word_tile(const Tile& t) { wide_tile<ByWords>(t); }

#else

inline void word_tile(const Tile& t) {
    std::uint32_t sums[kTileRows][kTileColumns] = {};
    if (t.add) std::memcpy(sums, t.sums, sizeof sums);
    for (const Segment *s = t.segments, *end = s + t.count; s != end; ++s) {
        const std::uint8_t* from = t.panel + s->b;
        std::ptrdiff_t at = s->a;
        for (std::size_t unit = s->units; unit != 0; --unit, at += t.a_step, from += t.b_step) {
            std::int16_t a[2], b[2 * kTileColumns];
            std::memcpy(b, from, sizeof b);
            for (std::size_t r = 0; r < kTileRows; ++r) {
                std::memcpy(a, t.rows[r] + at, sizeof a);
                for (std::size_t c = 0; c < kTileColumns; ++c)
                    sums[r][c] += static_cast<std::uint32_t>(a[0] * b[2 * c] + a[1] * b[2 * c + 1]);
            }
        }
    }
    std::memcpy(t.sums, sums, sizeof sums);
}

#endif

}  // namespace LOGRAD_ISA
}  // namespace lograd
