#include "kernels/blocks/blocks.h"

#include "base/tensor.h"
#include "isa/table.h"

namespace lograd {
namespace {

// Calls body(first, last) over pieces of all blocks.  Without a short block at the end of its rows, a tensor is one row.
template <class Body> void over_blocks(Blocks& task, Body body) {
    const std::size_t size = task.coding->size;
    if (task.columns % size == 0) task.columns *= task.rows, task.rows = 1;
    const std::size_t blocks = task.rows * ((task.columns + size - 1) / size);
    // Counted in elements, so that small tensors stay on one thread; a chunk of small blocks is not cut.
    const std::size_t grain = size < kGrain ? kGrain / size * size : size;
    parallel_for(blocks * size, grain, task.threads,
                 [&](std::size_t begin, std::size_t end) { body(begin / size, end / size); });
}

}  // namespace

Counts quantize_blocks(Blocks task) {
    const std::size_t size = task.coding->size;
    // A chunk starts where a vector does only if no earlier chunk was short.
    task.past_cache =
        past_cache(task.y, task.rows * task.columns, task.type) && 128 % size == 0 && task.columns % size == 0;
    Total total;
    over_blocks(task, [&](std::size_t first, std::size_t last) {
        Counts own{true};
        kernels().blocks.quantize(task, first, last, own);
        total.add(own);
    });
    return total.get();
}

void dequantize_blocks(Blocks task) {
    over_blocks(task, [&](std::size_t first, std::size_t last) { kernels().blocks.dequantize(task, first, last); });
}

}  // namespace lograd
