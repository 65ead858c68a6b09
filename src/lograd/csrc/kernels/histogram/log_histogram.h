// Counts of floor(log2 |x|) and the leading mantissa bits: the empirical law of |x| in one pass.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lograd {

// Slots that follow the bins.
enum Extra { kZeros, kNaNs, kInfinities, kExtras };

// Adds the counts of `count` elements to `out`: the bins of float64 for that type and of float32 for the others, then
// the extra slots.
//
// With stride > 1 it reads one 128-byte line of every `stride`.  Group g of lines gives its line floor(stride frac(g phi)):
// the place rotates, as a fixed one would see only some columns of a matrix whose row length fits the stride.
void log_histogram(int type, const void* data, std::size_t count, std::size_t stride, int threads, std::int64_t* out);

}  // namespace lograd
