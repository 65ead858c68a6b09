#include "kernels/elementwise/elementwise.h"

#include "base/tensor.h"
#include "isa/table.h"

namespace lograd {
namespace {

// Runs kernel(piece, counts) over the pieces of a tensor.
template <class Kernel> void over_pieces(const Elementwise& task, Kernel kernel) {
    const std::size_t size = bytes(task.type);
    // Pieces are cut where blocks of random numbers begin, whatever the offset.
    const std::size_t lead = (8 - task.key.offset % 8) % 8;
    const bool wanted = task.counts != nullptr;
    Total total(wanted);
    parallel_for(task.count, kGrain, task.threads, [&](std::size_t begin, std::size_t end) {
        begin += begin ? lead : 0;
        end += end < task.count ? lead : 0;
        if (end > task.count) end = task.count;
        if (begin >= end) return;
        Counts own{wanted};
        kernel(Piece{task.type, element(task.x, begin, size), element(task.y, begin, size), end - begin,
                     task.key.offset + begin, task.key.seed},
               own);
        total.add(own);
    });
    if (!wanted) return;
    const Counts& found = total.get();
    task.counts[0] += found.zeros, task.counts[1] += found.nans, task.counts[2] += found.clipped;
    task.counts[3] += found.zeros_before;
}

}  // namespace

void stochastic_prune(const Elementwise& task, float threshold) {
    over_pieces(
        task, [&](const Piece& piece, Counts& own) { kernels().elementwise.stochastic_prune(piece, threshold, own); });
}

void threshold_prune(const Elementwise& task, float threshold) {
    over_pieces(task,
                [&](const Piece& piece, Counts& own) { kernels().elementwise.threshold_prune(piece, threshold, own); });
}

void dither(const Elementwise& task, float step) {
    over_pieces(task, [&](const Piece& piece, Counts& own) { kernels().elementwise.dither(piece, step, own); });
}

void quantize(const Elementwise& task, const Grid& grid, float scale, bool stochastic) {
    over_pieces(task, [&](const Piece& piece, Counts& own) {
        kernels().elementwise.quantize(piece, grid, scale, stochastic, own);
    });
}

}  // namespace lograd
