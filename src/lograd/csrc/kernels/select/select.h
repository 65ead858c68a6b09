// The k-th largest magnitude, exactly: a radix select that reads the data about twice.

#pragma once

#include <cstddef>

namespace lograd {

// Writes the k-th largest |x| of `count` elements, 1 <= k <= count.  NaN counts as largest.
void kth_magnitude(int type, const void* data, std::size_t count, std::size_t k, int threads, float* out);

}  // namespace lograd
