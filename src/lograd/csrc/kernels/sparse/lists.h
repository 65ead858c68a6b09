// The sparse operand of the products of a backward pass: lists of nonzero gradient elements, and the kernels that make and
// use them.
//
// Both products multiply the same elements of G, sorted in two ways.  A list sums one row of a result: for dX it belongs to
// an output pixel p and holds G[p, o] over the output channels o, for dW it belongs to o and holds G[p, o] over p.
//
//                  output channels o  (a strip)
//                |-- part 0 --|-- part 1 --|     a line of G, as it lies in memory, is compressed once:
//              - +------------+------------+       .x..x...x  ->  entries (value, offset), places 1 4 8
//      block 0 | | .x..x...x. | ..x....x.. |
//    p         | | ...x..x... | x.....x... |     Its entries are appended to the list of the line ("along"), and each is
//   (a         - +------------+------------+     scattered to the list of its place in the line ("across"):
//   band)      | | x...x..... | .....x..x. |
//      block 1 | | ..x.....x. | .x...x.... |       G with channels last:   a line is a pixel.
//              - +------------+------------+           along   dX, list p of (band, part):     offsets of rows of W
//                                                      across  dW, list o of (block, run):     offsets of pixels of X
//                                                  G with channels first:  a line is a plane (o, image).
//                                                      along   dW, list o of (block, run):     offsets of pixels of X
//                                                      across  dX, list p of (band, part):     offsets of rows of W
//
//   dX[p + t, :] += sum over the list of p of value * W panel[offset]    the panel of a part, in the L1 cache
//   dW[o, :, t]  += sum over the list of o of value * X panel[offset]    the panel of a block, in the L1 cache
//
// The two cases are mirror images: exchange pixels and channels, and dX and dW.  `TwoWayLists` is what they share, and
// `Lister` walks G in either way.  plan.h says how pixels become blocks and bands, and channels parts, runs and strips.

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
// Random numbers are drawn in blocks: so many may stand before and behind those asked for.
constexpr std::size_t kDrawnBesides = 136;

// Elements of G in a row, and the random numbers that prune them on the way into lists.
struct Row {
    const float* x;
    std::size_t count;
    const std::uint16_t* random;  // the upper 16 bits of each; null if elements are taken as they are
    std::uint64_t index, seed;    // of the first
    float threshold;
};

struct Found {
    std::size_t elements = 0, zeros_before = 0, nonzero = 0, nans = 0;
};

// `count` pixels, `step` apart, of `channels` channels of an image: element (pixel, channel) is at
// data[pixel * step * pixel_stride + channel * channel_stride].
struct Pixels {
    std::size_t count, step, channels, pixel_stride, channel_stride;
};

// The kernels of one instruction set.
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

}  // namespace lograd
