#include "kernels/hadamard/hadamard.h"

#include <vector>

#include "base/tensor.h"
#include "isa/table.h"

namespace lograd {

void hadamard(const Hadamard& task) {
    const HadamardKernels& table = kernels().hadamard;
    const std::size_t count = task.rows * task.columns, sign_blocks = (task.columns + 127) / 128;
    std::vector<std::uint32_t> signs;
    if (task.seed != nullptr) {
        signs.resize(4 * sign_blocks);
        table.signs(*task.seed, sign_blocks, signs.data());
    }
    const HadamardPiece piece{task, task.seed == nullptr ? nullptr : signs.data(),
                              past_cache(task.y, count, task.type)};
    parallel_for(count, kGrain, task.threads, [&](std::size_t begin, std::size_t end) {
        table.transform(piece, begin / task.block, end / task.block);
    });
}

}  // namespace lograd
