// Tiles of one instruction set.  All of them give the same sums: integers, exact modulo 2^32.

#pragma once

#include "base/vector.isa.h"
#include "kernels/integer/tile.h"

namespace lograd {
namespace LOGRAD_ISA {

#if defined(__AVX512BW__)
constexpr std::size_t kMR = 8;
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
inline Register subtract16(Register a, Register b) { return _mm512_sub_epi16(a, b); }
inline Register larger16(Register a, Register b) { return _mm512_max_epi16(a, b); }
inline Register magnitudes(Register a) { return _mm512_abs_epi8(a); }
inline Register ones8() { return _mm512_set1_epi8(1); }
#elif defined(__AVX2__)
constexpr std::size_t kMR = 6;
typedef __m256i Register;
inline Register broadcast(const std::uint8_t* p) {
    int v;
    std::memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}
inline Register zero() { return _mm256_setzero_si256(); }
inline Register add32(Register a, Register b) { return _mm256_add_epi32(a, b); }
inline Register add16(Register a, Register b) { return _mm256_add_epi16(a, b); }
inline Register pairs(Register a, Register b) { return _mm256_madd_epi16(a, b); }
inline Register byte_pairs(Register a, Register b) { return _mm256_maddubs_epi16(a, b); }
inline Register ones16() { return _mm256_set1_epi16(1); }
inline Register subtract16(Register a, Register b) { return _mm256_sub_epi16(a, b); }
inline Register larger16(Register a, Register b) { return _mm256_max_epi16(a, b); }
inline Register magnitudes(Register a) { return _mm256_abs_epi8(a); }
inline Register ones8() { return _mm256_set1_epi8(1); }
#else
constexpr std::size_t kMR = 4;
#endif
constexpr std::size_t kNR = 2 * W;

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
    Register sums[kMR][2];
    const std::uint8_t* rows[kMR];
    LOGRAD_UNROLL
    for (std::size_t r = 0; r < kMR; ++r) {
        rows[r] = t.rows[r];
        LOGRAD_UNROLL
        for (std::size_t v = 0; v < 2; ++v) sums[r][v] = t.add ? load<Register>(t.sums + r * kNR + v * W) : zero();
    }
    for (const Segment *s = t.segments, *end = s + t.count; s != end; ++s) {
        const std::uint8_t* b = t.panel + s->b;
        std::ptrdiff_t at = s->a;
        for (std::size_t unit = s->units; unit != 0; --unit, at += t.a_step, b += t.b_step) {
            const Register b0 = load<Register>(b), b1 = load<Register>(b + 4 * W);
            LOGRAD_UNROLL
            for (std::size_t r = 0; r < kMR; ++r) {
                const Register a = broadcast(rows[r] + at);
                sums[r][0] = By::multiply(sums[r][0], a, b0), sums[r][1] = By::multiply(sums[r][1], a, b1);
            }
        }
    }
    LOGRAD_UNROLL
    for (std::size_t r = 0; r < kMR; ++r) {
        LOGRAD_UNROLL
        for (std::size_t v = 0; v < 2; ++v) store(t.sums + r * kNR + v * W, sums[r][v]);
    }
}

#if !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
// A tile whose sums are of 16 bits within a group of segments, and are then added to those of 32 bits.
inline void plain_byte_tile(const Tile& t) {
    bool add = t.add;
    for (const Segment *s = t.segments, *end = s + t.count; s != end;) {
        Register sums[kMR][2] = {};
        bool fresh = true;
        for (bool more = true; more; ++s) {
            more = s->flush == 0;
            const std::uint8_t* b = t.panel + s->b;
            std::ptrdiff_t at = s->a;
            std::size_t unit = s->units;
            if (fresh) {  // the first unit of a group writes its sums
                const Register b0 = load<Register>(b), b1 = load<Register>(b + 4 * W);
                LOGRAD_UNROLL
                for (std::size_t r = 0; r < kMR; ++r) {
                    const Register a = broadcast(t.rows[r] + at);
                    sums[r][0] = byte_pairs(a, b0), sums[r][1] = byte_pairs(a, b1);
                }
                fresh = false, --unit, at += t.a_step, b += t.b_step;
            }
            for (; unit != 0; --unit, at += t.a_step, b += t.b_step) {
                const Register b0 = load<Register>(b), b1 = load<Register>(b + 4 * W);
                LOGRAD_UNROLL
                for (std::size_t r = 0; r < kMR; ++r) {
                    const Register a = broadcast(t.rows[r] + at);
                    const Register first = byte_pairs(a, b0), second = byte_pairs(a, b1);
                    sums[r][0] = add16(sums[r][0], first), sums[r][1] = add16(sums[r][1], second);
                }
            }
        }
        const Register ones = ones16();
        LOGRAD_UNROLL
        for (std::size_t r = 0; r < kMR; ++r) {
            LOGRAD_UNROLL
            for (std::size_t v = 0; v < 2; ++v) {
                std::int32_t* to = t.sums + r * kNR + v * W;
                const Register wide = pairs(sums[r][v], ones);
                store(to, add ? add32(wide, load<Register>(to)) : wide);
            }
        }
        add = true;
    }
    if (!add) std::memset(t.sums, 0, kMR * kNR * sizeof(std::int32_t));
}
#endif

#if defined(__AVX2__) && !defined(__AVX512BW__) && !defined(__AVXVNNI__)
// The same in one block of assembly: GCC keeps some of the twelve sums in memory, which costs half of the speed.
//
// ymm0 to ymm11 are the sums, ymm12 and ymm13 a unit of B, ymm14 and ymm15 that of a row of A and its product.
#define LOGRAD_LOAD_B(b) \
    "vmovdqu (" b        \
    "), %%ymm12\n"       \
    "vmovdqu 32(" b "), %%ymm13\n"
#define LOGRAD_ROW(row, at, s0, s1)          \
    "vpbroadcastd (%[" row "],%[" at         \
    "]), %%ymm15\n"                          \
    "vpmaddubsw %%ymm12, %%ymm15, %%ymm14\n" \
    "vpmaddubsw %%ymm13, %%ymm15, %%ymm15\n" \
    "vpaddw %%ymm14, %%ymm" s0 ", %%ymm" s0  \
    "\n"                                     \
    "vpaddw %%ymm15, %%ymm" s1 ", %%ymm" s1 "\n"
#define LOGRAD_FIRST(row, at, s0, s1)       \
    "vpbroadcastd (%[" row "],%[" at        \
    "]), %%ymm15\n"                         \
    "vpmaddubsw %%ymm12, %%ymm15, %%ymm" s0 \
    "\n"                                    \
    "vpmaddubsw %%ymm13, %%ymm15, %%ymm" s1 "\n"
#define LOGRAD_ROWS(each, at)                                                                           \
    each("r0", at, "0", "1") each("r1", at, "2", "3") each("r2", at, "4", "5") each("r3", at, "6", "7") \
        each("r4", at, "8", "9") each("r5", at, "10", "11")
#define LOGRAD_WIDEN(sum, place)                \
    "vpmaddwd %%ymm12, %%ymm" sum ", %%ymm" sum \
    "\n"                                        \
    "vmovdqu %%ymm" sum ", " place "(%[units])\n"
#define LOGRAD_WIDEN_ADD(sum, place)                      \
    "vpmaddwd %%ymm12, %%ymm" sum ", %%ymm" sum           \
    "\n"                                                  \
    "vpaddd " place "(%[units]), %%ymm" sum ", %%ymm" sum \
    "\n"                                                  \
    "vmovdqu %%ymm" sum ", " place "(%[units])\n"
#define LOGRAD_SUMS(each)                                                                                             \
    each("0", "0") each("1", "32") each("2", "64") each("3", "96") each("4", "128") each("5", "160") each("6", "192") \
        each("7", "224") each("8", "256") each("9", "288") each("10", "320") each("11", "352")
#define LOGRAD_READ_SEGMENT          \
    "mov (%[segment]), %[at]\n"      \
    "mov 8(%[segment]), %[b]\n"      \
    "mov 16(%[segment]), %[units]\n" \
    "add %[panel], %[b]\n"
inline void byte_tile(const Tile& t) {
    static_assert(kMR == 6 && kNR == 16 && sizeof(Segment) == 32 && offsetof(Segment, flush) == 24);
    if (t.count == 0) return plain_byte_tile(t);
    const Segment* segment = t.segments;
    const Segment* const end = segment + t.count;
    // In memory of this function: 13 registers are taken, and without optimization there is none for the way to t.
    const std::uint8_t* const panel = t.panel;
    std::int32_t* const sums = t.sums;
    std::size_t add = t.add, units;
    std::ptrdiff_t at, next;
    const std::uint8_t* b;
    asm volatile(
        "1:\n"  // a group; its first unit writes the sums
        LOGRAD_READ_SEGMENT LOGRAD_LOAD_B("%[b]") LOGRAD_ROWS(LOGRAD_FIRST, "at")
        "add %[a_step], %[at]\n"
        "add %[b_step], %[b]\n"
        "dec %[units]\n"
        "jz 5f\n"
        "2:\n"  // the units that are left of a segment, two at a time
        "lea (%[at],%[a_step]), %[next]\n"
        "sub $2, %[units]\n"
        "jb 4f\n"
        ".p2align 5\n"
        "3:\n"  //
        LOGRAD_LOAD_B("%[b]") LOGRAD_ROWS(LOGRAD_ROW, "at")
        LOGRAD_LOAD_B("%[b],%[b_step]") LOGRAD_ROWS(LOGRAD_ROW, "next")
        "lea (%[at],%[a_step],2), %[at]\n"
        "lea (%[next],%[a_step],2), %[next]\n"
        "lea (%[b],%[b_step],2), %[b]\n"
        "sub $2, %[units]\n"
        "jae 3b\n"
        "4:\n"  // the last one, if their number is odd
        "test $1, %b[units]\n"
        "jz 5f\n"  //
        LOGRAD_LOAD_B("%[b]") LOGRAD_ROWS(LOGRAD_ROW, "at")
        "5:\n"
        "add $32, %[segment]\n"
        "cmpq $0, -8(%[segment])\n"
        "jne 6f\n"  //
        LOGRAD_READ_SEGMENT
        "jmp 2b\n"
        "6:\n"  // the end of a group
        "vpcmpeqw %%ymm12, %%ymm12, %%ymm12\n"
        "vpsrlw $15, %%ymm12, %%ymm12\n"  // ones
        "mov %[sums], %[units]\n"
        "cmpq $0, %[add]\n"
        "jne 7f\n"  //
        LOGRAD_SUMS(LOGRAD_WIDEN)
        "movq $1, %[add]\n"
        "jmp 8f\n"
        "7:\n"  //
        LOGRAD_SUMS(LOGRAD_WIDEN_ADD)
        "8:\n"
        "cmp %[end], %[segment]\n"
        "jne 1b\n"
        : [segment] "+r"(segment), [at] "=&r"(at), [next] "=&r"(next), [b] "=&r"(b), [units] "=&r"(units),
          [add] "+m"(add)
        : [r0] "r"(t.rows[0]), [r1] "r"(t.rows[1]), [r2] "r"(t.rows[2]), [r3] "r"(t.rows[3]), [r4] "r"(t.rows[4]),
          [r5] "r"(t.rows[5]), [a_step] "r"(t.a_step), [b_step] "r"(t.b_step), [panel] "m"(panel),
          [sums] "m"(sums), [end] "m"(end)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
          "xmm13", "xmm14", "xmm15", "cc", "memory");
}
#undef LOGRAD_LOAD_B
#undef LOGRAD_ROW
#undef LOGRAD_FIRST
#undef LOGRAD_ROWS
#undef LOGRAD_WIDEN
#undef LOGRAD_WIDEN_ADD
#undef LOGRAD_SUMS
#undef LOGRAD_READ_SEGMENT
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kExactBytes = true;
inline void byte_tile(const Tile& t) { wide_tile<ByBytes>(t); }
inline void plain_byte_tile(const Tile& t) { byte_tile(t); }
#else
constexpr bool kExactBytes = false;
#if defined(__AVX512BW__)
inline void byte_tile(const Tile& t) { plain_byte_tile(t); }
#endif
#endif
inline void word_tile(const Tile& t) { wide_tile<ByWords>(t); }

#else

inline void word_tile(const Tile& t) {
    std::uint32_t sums[kMR][kNR] = {};
    if (t.add) std::memcpy(sums, t.sums, sizeof sums);
    for (const Segment *s = t.segments, *end = s + t.count; s != end; ++s) {
        const std::uint8_t* from = t.panel + s->b;
        std::ptrdiff_t at = s->a;
        for (std::size_t unit = s->units; unit != 0; --unit, at += t.a_step, from += t.b_step) {
            std::int16_t a[2], b[2 * kNR];
            std::memcpy(b, from, sizeof b);
            for (std::size_t r = 0; r < kMR; ++r) {
                std::memcpy(a, t.rows[r] + at, sizeof a);
                for (std::size_t c = 0; c < kNR; ++c)
                    sums[r][c] += static_cast<std::uint32_t>(a[0] * b[2 * c] + a[1] * b[2 * c + 1]);
            }
        }
    }
    std::memcpy(t.sums, sums, sizeof sums);
}

#endif

}  // namespace LOGRAD_ISA
}  // namespace lograd
