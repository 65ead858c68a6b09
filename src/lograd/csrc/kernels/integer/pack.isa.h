// The passes before and after the tiles: elements side by side in units, sums to float32.

#pragma once

#include "base/vector.isa.h"
#include "kernels/integer/tile.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// One by one: units from `unit` to `end`, columns from `column` on.
template <class T> void pack_scalar(const Packing& p, std::size_t unit, std::size_t end, std::size_t column) {
    constexpr std::size_t per = 4 / sizeof(T);
    T* out = static_cast<T*>(p.out);
    for (; unit < end; ++unit)
        for (std::size_t c = column; c < p.width; ++c)
            for (std::size_t j = 0; j < per; ++j) {
                const std::size_t k = unit * per + j;
                const bool there = k < p.k && c < p.columns;
                const int value = there ? p.from[k * p.k_stride + c * p.column_stride] - p.shift : p.fill;
                out[(unit * p.width + c) * per + j] = static_cast<T>(value);
            }
}

#ifdef __SSE2__
struct Sixteen {
    __m128i shift;
    __m128i load(const std::uint8_t* p) const {
        return _mm_sub_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), shift);
    }
    static void store(std::uint8_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
};

// Four rows of k, sixteen columns at a time; the first column that is left.
inline std::size_t pack_columns(const Packing& p, std::size_t unit, const Sixteen& io) {
    const std::uint8_t* from = p.from + 4 * unit * p.k_stride;
    auto* out = static_cast<std::uint8_t*>(p.out) + 4 * unit * p.width;
    std::size_t c = 0;
    for (; c + 16 <= p.columns; c += 16) {
        const __m128i r0 = io.load(from + c), r1 = io.load(from + p.k_stride + c);
        const __m128i r2 = io.load(from + 2 * p.k_stride + c), r3 = io.load(from + 3 * p.k_stride + c);
        const __m128i low01 = _mm_unpacklo_epi8(r0, r1), high01 = _mm_unpackhi_epi8(r0, r1);
        const __m128i low23 = _mm_unpacklo_epi8(r2, r3), high23 = _mm_unpackhi_epi8(r2, r3);
        io.store(out + 4 * c, _mm_unpacklo_epi16(low01, low23));
        io.store(out + 4 * c + 16, _mm_unpackhi_epi16(low01, low23));
        io.store(out + 4 * c + 32, _mm_unpacklo_epi16(high01, high23));
        io.store(out + 4 * c + 48, _mm_unpackhi_epi16(high01, high23));
    }
    return c;
}

// Four columns of sixteen k at a time; the first column that is left.
inline std::size_t pack_rows(const Packing& p, std::size_t unit, const Sixteen& io) {
    const std::uint8_t* from = p.from + 4 * unit;
    auto* out = static_cast<std::uint8_t*>(p.out) + 4 * unit * p.width;
    std::size_t c = 0;
    for (; c + 4 <= p.columns; c += 4) {
        const std::uint8_t* column = from + c * p.column_stride;
        const __m128i c0 = io.load(column), c1 = io.load(column + p.column_stride);
        const __m128i c2 = io.load(column + 2 * p.column_stride), c3 = io.load(column + 3 * p.column_stride);
        const __m128i low01 = _mm_unpacklo_epi32(c0, c1), high01 = _mm_unpackhi_epi32(c0, c1);
        const __m128i low23 = _mm_unpacklo_epi32(c2, c3), high23 = _mm_unpackhi_epi32(c2, c3);
        io.store(out + 4 * c, _mm_unpacklo_epi64(low01, low23));
        io.store(out + 4 * (p.width + c), _mm_unpackhi_epi64(low01, low23));
        io.store(out + 4 * (2 * p.width + c), _mm_unpacklo_epi64(high01, high23));
        io.store(out + 4 * (3 * p.width + c), _mm_unpackhi_epi64(high01, high23));
    }
    return c;
}
#endif

inline void pack_bytes(const Packing& p) {
    const std::size_t units = (p.k + 3) / 4;
    std::size_t unit = 0;
#ifdef __SSE2__
    const Sixteen io{_mm_set1_epi8(static_cast<char>(p.shift))};
    const bool together = p.column_stride == 1;
    const std::size_t step = together ? 1 : 4;
    for (; (together || p.k_stride == 1) && 4 * (unit + step) <= p.k; unit += step)
        pack_scalar<std::uint8_t>(p, unit, unit + step, together ? pack_columns(p, unit, io) : pack_rows(p, unit, io));
#endif
    pack_scalar<std::uint8_t>(p, unit, units, 0);
}

inline void pack_words(const Packing& p) { pack_scalar<std::int16_t>(p, 0, (p.k + 1) / 2, 0); }

inline void epilogue(const Epilogue& f) {
    for (std::size_t r = 0; r < f.rows; ++r) {
        const std::int32_t* sums = f.sums + r * kNR;
        const std::uint32_t row_offset = f.row_offsets == nullptr ? 0 : static_cast<std::uint32_t>(f.row_offsets[r]);
        float* out = f.out[r];
        for (std::size_t c = 0; c < f.columns; c += W) {
            const U exact = load<U>(sums + c) - load<U>(f.column_offsets + c) - row_offset;
            F value = __builtin_convertvector(bits<I>(exact), F) * load<F>(f.column_scales + c);
            if (f.row_scales != nullptr) value *= f.row_scales[r];
            if (f.bias != nullptr) value += load<F>(f.bias + c);
            if (c + W <= f.columns && f.past_cache) stream(out + c, value);
            else if (c + W <= f.columns) store(out + c, value);
            else std::memcpy(out + c, &value, (f.columns - c) * sizeof(float));
        }
    }
}

inline void look_up(const std::uint8_t* from, std::uint8_t* to, std::size_t count, const std::uint8_t* table) {
    std::size_t i = 0;
#ifdef __AVX2__
    // Codes of four bits look in a register; others are taken one by one.
    const __m256i first = _mm256_broadcastsi128_si256(load<__m128i>(table)), high = _mm256_set1_epi8(char(0xf0));
    for (; i + 32 <= count; i += 32) {
        const __m256i codes = load<__m256i>(from + i);
        if (!_mm256_testz_si256(codes, high)) {
            for (std::size_t k = i; k < i + 32; ++k) to[k] = table[from[k]];
            continue;
        }
        store(to + i, _mm256_shuffle_epi8(first, codes));
    }
#endif
    for (; i < count; ++i) to[i] = table[from[i]];
}

inline int largest(const std::uint8_t* x, std::size_t count) {
    std::uint8_t most = 0;
    for (std::size_t i = 0; i < count; ++i) most = x[i] > most ? x[i] : most;
    return most;
}

#if defined(__AVX2__)
// Magnitudes are summed over blocks; a group as long as q of them meets at most q + 1.
inline std::size_t longest_group(const std::uint8_t* panel, std::size_t units, int limit, std::int16_t* sums) {
    constexpr std::size_t block = kGroupBlock, lanes = 2 * W, width = 2 * lanes;
    const std::size_t blocks = (units + block - 1) / block;
    std::memset(sums, 0, blocks * width * sizeof *sums);
    for (std::size_t unit = 0; unit < units; ++unit)
        for (std::size_t v = 0; v < 2; ++v) {
            std::int16_t* to = sums + unit / block * width + v * lanes;
            const Register b = magnitudes(load<Register>(panel + (2 * unit + v) * 4 * W));
            store(to, add16(load<Register>(to), byte_pairs(b, ones8())));
        }
    for (std::size_t q = kLongestGroup / block; q != 0; q = q * 3 / 4) {
        Register most = zero();
        for (std::size_t v = 0; v < 2; ++v) {
            Register window = zero();
            for (std::size_t i = 0; i < blocks; ++i) {
                window = add16(window, load<Register>(sums + i * width + v * lanes));
                if (i > q) window = subtract16(window, load<Register>(sums + (i - q - 1) * width + v * lanes));
                most = larger16(most, window);
            }
        }
        std::int16_t each[lanes];
        store(each, most);
        int found = 0;
        for (const std::int16_t one : each) found = one > found ? one : found;
        if (found <= limit) return q * block;
    }
    return 0;
}
#else
inline std::size_t longest_group(const std::uint8_t*, std::size_t, int, std::int16_t*) { return 0; }
#endif

}  // namespace LOGRAD_ISA
}  // namespace lograd
