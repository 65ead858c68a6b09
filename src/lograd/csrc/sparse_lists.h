// The sparse operand of the products of a backward pass: lists of nonzero gradient elements, and the kernels that make
// and use them, one table per instruction set.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lograd {

// A nonzero element of G, and where the row of the dense operand that it multiplies starts, in bytes from the panel.
struct Entry {
    float value;
    std::uint32_t offset;
};

// A row of the result: its place, in floats from the tile, and how many entries it sums.
struct List {
    std::uint32_t where, length;
};

// Lists sorted by length, so that the loop over their entries ends predictably; their entries follow each other.
struct Lists {
    const List* lists = nullptr;
    const Entry* entries = nullptr;
    std::size_t count = 0;
};

constexpr int kMostVectors = 14;  // of a tile, so that sums and one broadcast fit sixteen registers
// Compression writes whole vectors: so many entries behind the last one may be overwritten.
constexpr std::size_t kOverrun = 16;

// Elements of G in a row, and the random numbers that prune them on the way into lists.
struct Row {
    const float* x;
    std::size_t count;
    const std::uint16_t* random;  // the upper 16 bits of each; null if elements are taken as they are
    std::uint64_t index, seed;    // of the first
    float threshold;

    Row part(std::size_t begin, std::size_t size) const {
        return {x + begin, size, random == nullptr ? nullptr : random + begin, index + begin, seed, threshold};
    }
};

// Random numbers are drawn in blocks: so many may stand before and behind those asked for.
constexpr std::size_t kDrawnBesides = 136;

struct Found {
    std::size_t elements = 0, zeros_before = 0, nonzero = 0, nans = 0;
};

// `count` pixels, `step` apart, of `channels` channels of an image: element (pixel, channel) is at
// data[pixel * step * pixel_stride + channel * channel_stride].
struct Pixels {
    std::size_t count, step, channels, pixel_stride, channel_stride;
};

struct SparseKernels {
    std::size_t lanes;
    // tile[list.where + i] += sum over its entries of value * panel[offset + i], i < vectors * lanes.
    void (*multiply[kMostVectors + 1])(const Lists&, const char* panel, float* tile);
    // The upper 16 random bits of x[0..n), whose random indices begin at `index`, somewhere in `random`.  Meanwhile x
    // itself is fetched from memory.
    const std::uint16_t* (*draw)(std::uint64_t seed, std::uint64_t index, const float* x, std::size_t n,
                                 std::uint16_t* random);
    // The elements of a row that are left, NaN included, in order: values with offsets[i], and the places i.
    std::size_t (*compress)(const Row&, const std::uint32_t* offsets, Entry* out, std::uint16_t* places);
    // Entry (value, offset) is appended to the list of its place; lists start `pitch` apart.
    void (*scatter)(const Entry* from, const std::uint16_t* places, std::size_t n, std::uint32_t offset, Entry* slots,
                    std::size_t pitch, std::uint32_t* lengths);
    // Pixels to rows of `width` floats, channels first and zeros behind them.  True if an element was not finite.
    bool (*pack)(const float* data, const Pixels&, std::size_t width, float* rows);
    // Back, added to what is there or in its place.
    void (*unpack)(const float* rows, std::size_t width, const Pixels&, bool add, float* data);
    // Counts elements, zeros and NaN.
    void (*count)(const float* x, std::size_t n, Found&);
};

const SparseKernels& generic_sparse_kernels();
const SparseKernels& avx2_sparse_kernels();
const SparseKernels& avx512_sparse_kernels();

}  // namespace lograd
