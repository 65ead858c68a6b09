#include "kernels/learned/learned.h"

#include <algorithm>
#include <vector>

#include "base/tensor.h"
#include "isa/table.h"

namespace lograd {

double range_gradients(const RangeGradients& task, int threads) {
    const std::size_t blocks = (task.count + kRangeBlock - 1) / kRangeBlock, size = bytes(task.type);
    const bool past = past_cache(task.d_x, task.count, task.type);
    std::vector<double> sums(std::max<std::size_t>(blocks, 1), 0.0);
    parallel_for(task.count, kRangeBlock, threads, [&](std::size_t begin, std::size_t end) {
        RangeGradients own = task;
        own.g = element(task.g, begin, size), own.x = element(task.x, begin, size);
        own.d_x = element(task.d_x, begin, size), own.count = end - begin;
        kernels().learned.range_gradients(own, past, sums.data() + begin / kRangeBlock);
    });
    // Folded in the middle until one number is left: the upper half, which may be shorter, is added to the lower one.
    for (std::size_t left = sums.size(); left > 1;) {
        const std::size_t half = (left + 1) / 2;
        for (std::size_t k = half; k < left; ++k) sums[k - half] += sums[k];
        left = half;
    }
    return sums[0];
}

}  // namespace lograd
