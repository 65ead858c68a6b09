// Strings of bits, the lowest bit of a byte first: numbers of a fixed width, bytes of few bits, lanes of a vector.

#pragma once

#include "base/places.isa.h"
#include "base/vector.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

inline std::size_t bytes_for(std::size_t bits) { return (bits + 7) / 8; }

inline std::uint64_t load64(const std::uint8_t* p) { return load<std::uint64_t>(p); }
inline void store64(std::uint8_t* p, std::uint64_t v) { std::memcpy(p, &v, 8); }

// Eight bytes of at most `bits` bits as a string of 8 bits bits, and back.
inline std::uint64_t narrowed_bytes(std::uint64_t x, int bits) {
    x = (x & 0x00ff00ff00ff00ffu) | (x & 0xff00ff00ff00ff00u) >> (8 - bits);
    x = (x & 0x0000ffff0000ffffu) | (x & 0xffff0000ffff0000u) >> (16 - 2 * bits);
    return (x & 0xffffffffu) | (x >> 32) << 4 * bits;
}
inline std::uint64_t widened_bytes(std::uint64_t x, int bits) {
    const std::uint64_t four = (std::uint64_t{1} << 4 * bits) - 1, two = (std::uint64_t{1} << 2 * bits) - 1;
    const std::uint64_t one = (std::uint64_t{1} << bits) - 1;
    x = (x & four) | (x >> 4 * bits & four) << 32;
    x = (x & (two | two << 32)) | (x & (two | two << 32) << 2 * bits) << (16 - 2 * bits);
    const std::uint64_t ones = one * 0x0001000100010001u;
    return (x & ones) | (x & ones << bits) << (8 - bits);
}

// Bytes of at most `bits` bits; whole words are written behind the last one, and read behind the last one of `from`.
inline void pack_bytes(const std::uint8_t* from, std::size_t count, int bits, std::uint8_t* to) {
    for (std::size_t i = 0; i < count; i += 8, to += bits) store64(to, narrowed_bytes(load64(from + i), bits));
}
inline void unpack_bytes(const std::uint8_t* from, std::size_t count, int bits, std::uint8_t* to) {
    for (std::size_t i = 0; i < count; i += 8, from += bits) store64(to + i, widened_bytes(load64(from), bits));
}

// Numbers of at most 32 bits, of which the lowest `width` are written; a word is written behind the last one.
inline void put_numbers(const std::uint32_t* numbers, std::size_t count, int width, std::uint8_t* out) {
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    std::uint64_t held = 0;
    unsigned filled = 0;
    const auto put = [&](std::uint64_t bits_of, int size) {
        held |= bits_of << filled;
        store64(out, held);
        filled += static_cast<unsigned>(size);
        out += filled / 8;
        held >>= filled & ~7u;
        filled &= 7;
    };
    std::size_t i = 0;
    // Each step waits for the one before it, so two numbers are put at once where they fit.
    if (2 * width + 7 < 64)
        for (; i + 2 <= count; i += 2) put((numbers[i] & mask) | (numbers[i + 1] & mask) << width, 2 * width);
    for (; i < count; ++i) put(numbers[i] & mask, width);
    store64(out, held);
}
inline void get_numbers(const std::uint8_t* from, std::size_t count, int width, std::uint32_t* numbers) {
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    for (std::size_t i = 0, at = 0; i < count; ++i, at += static_cast<std::size_t>(width))
        numbers[i] = static_cast<std::uint32_t>(load64(from + at / 8) >> at % 8 & mask);
}

// The sign bit of each lane, the first lane lowest.
inline std::uint32_t lane_bits(I mask) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask(bits<__m512i>(mask));
#elif defined(__AVX2__)
    return static_cast<std::uint32_t>(_mm256_movemask_ps(bits<__m256>(mask)));
#else
    std::uint32_t found = 0;
    for (std::size_t i = 0; i < W; ++i) found |= (static_cast<std::uint32_t>(mask[i]) >> 31) << i;
    return found;
#endif
}
// All bits of a lane from a bit each.
inline I lanes_of(std::uint32_t mask) {
#if defined(__AVX512F__)
    return bits<I>(_mm512_movm_epi32(static_cast<__mmask16>(mask)));
#else
    I places;
    for (std::size_t i = 0; i < W; ++i) places[i] = 1 << i;
    return (static_cast<std::int32_t>(mask) & places) != 0;
#endif
}
inline std::uint32_t load_lane_bits(const std::uint8_t* p) {
    std::uint32_t found = 0;
    std::memcpy(&found, p, W / 8);
    return found;
}

// Writes the lanes whose bits are set, one after the other and whole vectors; returns how many.
inline std::size_t compress_lanes(U v, std::uint32_t mask, std::uint32_t* out) {
#if defined(__AVX512F__)
    store(out, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), bits<__m512i>(v)));
#elif defined(__AVX2__)
    const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPlaces.of[mask])));
    store(out, _mm256_permutevar8x32_epi32(bits<__m256i>(v), order));
#else
    for (std::size_t lane = 0, n = 0; lane < W; ++lane) {
        out[n] = v[lane];
        n += mask >> lane & 1;
    }
#endif
    return static_cast<std::size_t>(__builtin_popcount(mask));
}
// first + the numbers of the bits that are set; a whole vector is written.
inline std::size_t list_lanes(std::uint32_t mask, std::size_t first, std::uint16_t* out) {
#if defined(__AVX512F__)
    const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i places = _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), numbers);
    store(out, _mm512_cvtepi32_epi16(_mm512_add_epi32(places, _mm512_set1_epi32(static_cast<int>(first)))));
#elif defined(__AVX2__)
    const __m128i places = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPlaces.of[mask]));
    store(out, _mm_add_epi16(_mm_cvtepu8_epi16(places), _mm_set1_epi16(static_cast<short>(first))));
#else
    for (std::size_t lane = 0, n = 0; lane < W; ++lane) {
        out[n] = static_cast<std::uint16_t>(first + lane);
        n += mask >> lane & 1;
    }
#endif
    return static_cast<std::size_t>(__builtin_popcount(mask));
}
// Numbers one after the other into the lanes whose bits are set; what the others hold does not matter.
inline U expand_lanes(const std::uint32_t* from, std::uint32_t mask) {
#if defined(__AVX512F__)
    return bits<U>(_mm512_maskz_expand_epi32(static_cast<__mmask16>(mask), load<__m512i>(from)));
#elif defined(__AVX2__)
    const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kRanks.of[mask])));
    return bits<U>(_mm256_permutevar8x32_epi32(load<__m256i>(from), order));
#else
    U v{};
    for (std::size_t lane = 0, n = 0; lane < W; ++lane) {
        v[lane] = from[n];
        n += mask >> lane & 1;
    }
    return v;
#endif
}

// Bytes that are 0 or 1 as bits; 64 bytes behind the last one are read, and 8 behind the last one of `to` written.
inline void gather_marks(const std::uint8_t* marks, std::size_t count, std::uint8_t* to) {
#if defined(__AVX2__)
    for (std::size_t i = 0; i < count; i += 32) {
        const std::uint32_t found =
            static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(load<__m256i>(marks + i), 7)));
        std::memcpy(to + i / 8, &found, 4);
    }
#else
    for (std::size_t i = 0; i < count; i += 8)
        to[i / 8] = static_cast<std::uint8_t>(load64(marks + i) * 0x0102040810204080u >> 56);
#endif
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
