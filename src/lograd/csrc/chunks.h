// The loop that all elementwise kernels share: read a chunk as float32, draw its random numbers, compute, write it back.
//
// A chunk lies in the L1 cache.  Kernels see kChunk floats in, kChunk floats out and kChunk halves of random bits, whole
// vectors only: types, tails and alignment are dealt with here.
//
// This is compiled for several instruction sets, so it uses no function template of the standard library: the linker
// keeps one copy of those, and it could be one that an older CPU cannot run.

#pragma once

#include <type_traits>

#include "kernels.h"
#include "vector.h"

namespace lograd {

struct Bfloat16 {
    std::uint16_t bits;
};
struct Float16 {
    std::uint16_t bits;
};

// A byte that holds the number of a value.
struct Code {
    std::uint8_t value;
};

namespace LOGRAD_ISA {

constexpr std::size_t kChunk = 128;
// How far ahead of the arithmetic memory is asked for, in elements.
constexpr std::size_t kAhead = 512;

inline void widen(const float* from, float* to, std::size_t n) { std::memcpy(to, from, n * sizeof(float)); }
inline void widen(const Bfloat16* from, float* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t word = std::uint32_t{from[i].bits} << 16;
        std::memcpy(to + i, &word, 4);
    }
}
inline float widen_half(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16, rest = half & 0x7fffu;
    std::uint32_t word;
    if (rest >= 0x7c00u) word = 0x7f800000u | (rest & 0x3ffu) << 13;
    else if (rest >= 0x400u) word = (rest << 13) + 0x38000000u;
    else {  // subnormal: exact as an integer times 2^-24
        const float value = static_cast<float>(rest) * 0x1p-24f;
        std::memcpy(&word, &value, 4);
    }
    word |= sign;
    float out;
    std::memcpy(&out, &word, 4);
    return out;
}
inline void widen(const Float16* from, float* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i] = widen_half(from[i].bits);
}

inline void narrow(const float* from, float* to, std::size_t n) { std::memcpy(to, from, n * sizeof(float)); }
inline void narrow(const float* from, Bfloat16* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t word;
        std::memcpy(&word, from + i, 4);
        const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
        // Ties to even; one NaN for all.  A finite number stays finite.
        const bool infinite = (word & 0x7fffffffu) == 0x7f800000u;
        std::uint32_t rounded = (word + 0x7fffu + (word >> 16 & 1)) >> 16;
        rounded -= (rounded & 0x7fffu) == 0x7f80u && !infinite;
        to[i].bits = nan ? 0x7fc0u : static_cast<std::uint16_t>(rounded);
    }
}
inline std::uint16_t narrow_half(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    const std::uint16_t sign = static_cast<std::uint16_t>(word >> 16 & 0x8000u);
    const std::uint32_t m = word & 0x7fffffffu;
    if (m > 0x7f800000u) return 0x7e00u;  // one NaN for all
    if (m == 0x7f800000u) return sign | 0x7c00u;
    if (m >= 0x477fe000u) return sign | 0x7bffu;  // 65504 and beyond: a finite number stays finite
    if (m < 0x38800000u) {                        // below 2^-14: round to a multiple of 2^-24
        float magnitude;
        std::memcpy(&magnitude, &m, 4);
        const float shifted = magnitude + 0.5f;  // 0.5 has a last place of 2^-24
        std::uint32_t steps;
        std::memcpy(&steps, &shifted, 4);
        return sign | static_cast<std::uint16_t>(steps - 0x3f000000u);
    }
    return sign | static_cast<std::uint16_t>((m - 0x38000000u + 0xfffu + (m >> 13 & 1)) >> 13);
}
inline void narrow(const float* from, Float16* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i].bits = narrow_half(from[i]);
}

inline void widen(const Code* from, float* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i] = from[i].value;
}
inline void narrow(const float* from, Code* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i].value = static_cast<std::uint8_t>(static_cast<std::int32_t>(from[i]));
}

// Calls go(null pointer of the element type).
template <class Go> void with_type(Type type, Go go) {
    switch (type) {
        case Type::kFloat32: return go(static_cast<float*>(nullptr));
        case Type::kBfloat16: return go(static_cast<Bfloat16*>(nullptr));
        case Type::kFloat16: return go(static_cast<Float16*>(nullptr));
    }
}

inline void write(const float* from, float* to, bool past_cache) {
    if (past_cache)
        for (std::size_t j = 0; j < kChunk; j += W) stream(to + j, load<F>(from + j));
    else
        std::memcpy(to, from, kChunk * sizeof(float));
}
template <class T> void write(const float* from, T* to, bool) { narrow(from, to, kChunk); }

// Four vectors of whole numbers from 0 to 255 as bytes.
inline void store_bytes(const I* v, Code* out) {
#if defined(__AVX512F__)
    for (std::size_t k = 0; k < 4; ++k)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + W * k), _mm512_cvtepi32_epi8(bits<__m512i>(v[k])));
#elif defined(__AVX2__)
    const __m256i low = _mm256_packus_epi32(bits<__m256i>(v[0]), bits<__m256i>(v[1]));
    const __m256i high = _mm256_packus_epi32(bits<__m256i>(v[2]), bits<__m256i>(v[3]));
    // The instructions pack within halves: the order of the groups of four is 0 2 4 6 1 3 5 7.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    store(out, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
#else
    for (std::size_t k = 0; k < 4 * W; ++k) out[k].value = static_cast<std::uint8_t>(v[k / W][k % W]);
#endif
}

// How a kernel writes a vector of its result.
struct Cached {
    void operator()(float* p, F v) const { store(p, v); }
};
struct Streamed {
    void operator()(float* p, F v) const { stream(p, v); }
};

// Where kernels of floats write: through `put`, once, straight into the output; or into a buffer that they may read again.
// Codes of whole chunks always go straight: `out` is a Code* there.
enum class Writes { kStraight, kBuffered };

// kernel(put, in, out, random, first, valid): `first` is the random index of in[0]; elements from `valid` on are padding.
template <bool Random, class In, class Out, class Kernel>
void for_chunks(const In* x, Out* y, std::size_t n, std::uint64_t index, std::uint64_t seed, Writes writes, Kernel kernel) {
    static_assert(Upper16::kBlocks * 8 == kChunk);
    alignas(64) float in[kChunk], out[kChunk];
    alignas(64) std::uint16_t random[kChunk] = {};
    const Upper16 upper16(seed);
    // Blocks of random numbers hold eight elements, so the first chunk ends where a block does.
    std::size_t done = Random ? (8 - index % 8) % 8 : 0;
    if (done > n) done = n;
    const auto ragged = [&](std::size_t at, std::size_t count) {
        widen(x + at, in, count);
        std::memset(in + count, 0, (kChunk - count) * sizeof(float));
        if (Random) {
            alignas(64) std::uint16_t padded[2 * kChunk];
            const std::size_t lead = (index + at) % 8;
            upper16((index + at) / 8, padded);
            if (lead + count > kChunk) upper16((index + at) / 8 + kChunk / 8, padded + kChunk);
            std::memcpy(random, padded + lead, count * sizeof random[0]);
        }
        kernel(Cached{}, in, out, random, index + at, count);
        narrow(out, y + at, count);
    };
    if (done) ragged(0, done);
    const bool apart = static_cast<const void*>(x) != y;
    const bool past_cache = n * sizeof(Out) >= (std::size_t{4} << 20) && apart &&
                            reinterpret_cast<std::uintptr_t>(y + done) % (W * 4) == 0;
    const auto whole = [&](auto straight, auto put) {
        for (; done + kChunk <= n; done += kChunk) {
            for (std::size_t j = 0; j < kChunk; j += 64 / sizeof(In)) __builtin_prefetch(x + done + kAhead + j);
            if (Random) upper16((index + done) / 8, random);
            const float* from = in;
            if constexpr (std::is_same_v<In, float>) from = x + done;
            else widen(x + done, in, kChunk);
            if constexpr (straight.value) {
                kernel(put, from, y + done, random, index + done, kChunk);
            } else {
                kernel(put, from, out, random, index + done, kChunk);
                write(out, y + done, past_cache);
            }
        }
    };
    if constexpr (std::is_same_v<In, float> && std::is_same_v<Out, float>) {
        if (writes == Writes::kStraight && apart && past_cache) whole(std::true_type{}, Streamed{});
        else if (writes == Writes::kStraight && apart) whole(std::true_type{}, Cached{});
        else whole(std::false_type{}, Cached{});
    } else if constexpr (std::is_same_v<Out, Code>) {
        whole(std::true_type{}, Cached{});
    } else {
        whole(std::false_type{}, Cached{});
    }
    if (done < n) ragged(done, n - done);
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
