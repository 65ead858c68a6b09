// Bytes of a matrix to its columns, 16 x 16 at a time.

#pragma once

#include "base/vector.isa.h"
#include "kernels/levels/levels.h"

namespace lograd {
namespace LOGRAD_ISA {

#ifdef __SSE2__
// Sixteen rows become sixteen columns: four times, neighbours at half the distance are interleaved.
LOGRAD_INLINE void transpose_block(const std::uint8_t* from, std::size_t stride, __m128i* columns) {
    __m128i a[16], b[16];
    LOGRAD_UNROLL
    for (std::size_t i = 0; i < 16; ++i) a[i] = load<__m128i>(from + i * stride);
    const auto interleave = [](const __m128i* in, __m128i* out) __attribute__((always_inline)) {
        LOGRAD_UNROLL
        for (std::size_t i = 0; i < 8; ++i) {
            out[2 * i] = _mm_unpacklo_epi8(in[i], in[i + 8]);
            out[2 * i + 1] = _mm_unpackhi_epi8(in[i], in[i + 8]);
        }
    };
    interleave(a, b), interleave(b, a), interleave(a, b), interleave(b, columns);
}
#endif

inline void transpose_bytes(const std::uint8_t* from, std::size_t rows, std::size_t columns, std::size_t stride,
                            std::uint8_t* to, std::size_t to_stride) {
#ifdef __SSE2__
    for (std::size_t column = 0; column < columns; column += 16) {
        const std::size_t high = columns - column < 16 ? columns - column : 16;
        for (std::size_t row = 0; row < rows; row += 16) {
            __m128i block[16];
            transpose_block(from + row * stride + column, stride, block);
            std::uint8_t* out = to + column * to_stride + row;
            const std::size_t wide = rows - row < 16 ? rows - row : 16;
            if (wide == 16 && high == 16) {
                LOGRAD_UNROLL
                for (std::size_t i = 0; i < 16; ++i) store(out + i * to_stride, block[i]);
            } else if (wide == 16) {
                for (std::size_t i = 0; i < high; ++i) store(out + i * to_stride, block[i]);
            } else {
                for (std::size_t i = 0; i < high; ++i) std::memcpy(out + i * to_stride, &block[i], wide);
            }
        }
    }
#else
    for (std::size_t column = 0; column < columns; ++column)
        for (std::size_t row = 0; row < rows; ++row) to[column * to_stride + row] = from[row * stride + column];
#endif
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
