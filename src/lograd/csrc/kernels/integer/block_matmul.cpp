// The product of two matrices of bytes whose rows have a factor for each block of k.

#include <algorithm>

#include "base/kept.h"
#include "base/parallel.h"
#include "base/tensor.h"
#include "isa/table.h"
#include "kernels/integer/blocking.h"
#include "kernels/integer/integer.h"
#include "kernels/integer/workspace.h"

namespace lograd {
namespace {

class BlockProduct {
    const IntegerBlocks& t_;
    const Arithmetic& arithmetic_;
    const std::size_t blocks_, units_, width_, panels_, panel_bytes_;
    const bool past_cache_;
    std::uint8_t* packed_ = nullptr;
    std::int32_t* offsets_ = nullptr;  // (panels, blocks, columns)
    float* scales_ = nullptr;          // (panels, blocks, columns)

public:
    BlockProduct(const IntegerBlocks& t, const Arithmetic& arithmetic)
        : t_(t), arithmetic_(arithmetic), blocks_(t.k / t.block), units_(t.block / arithmetic.units.per),
          width_(arithmetic.kernels.nr), panels_(up(t.n, width_)), panel_bytes_(blocks_ * units_ * 4 * width_),
          past_cache_(past_cache(t.out, t.m * t.n, Type::kFloat32) && t.n % kMaxNR == 0) {}

    void run(IntegerWorkspace& space, int threads) {
        const std::size_t numbers = panels_ * blocks_ * width_;
        packed_ = space.panels.get<std::uint8_t>(panels_ * panel_bytes_);
        offsets_ = space.sums.get<std::int32_t>(numbers);
        scales_ = space.columns.get<float>(numbers);
        parallel_tasks(panels_, threads, [&](std::size_t, std::size_t panel) { pack(panel); });
        parallel_tasks(up(t_.m, kBlocking.mc), threads, [&](std::size_t worker, std::size_t task) {
            multiply(task * kBlocking.mc, std::min(t_.m, (task + 1) * kBlocking.mc), *space.workers[worker]);
        });
    }

private:
    void pack(std::size_t panel) {
        const std::size_t first = panel * width_, columns = std::min(width_, t_.n - first);
        std::uint8_t* to = packed_ + panel * panel_bytes_;
        arithmetic_.units.pack({t_.b.data + first * t_.k, 1, t_.k, t_.k, columns, width_, arithmetic_.b_shift, 0, to});
        std::vector<Segment> groups;
        for (std::size_t block = 0; block < blocks_; ++block) {
            const std::size_t at = (panel * blocks_ + block) * width_;
            for (std::size_t c = 0; c < width_; ++c)
                scales_[at + c] = c < columns ? t_.b_scales[(first + c) * blocks_ + block] : 0.0f;
            std::int64_t wide[kMaxNR] = {};
            std::fill(offsets_ + at, offsets_ + at + width_, 0);
            const auto step = static_cast<std::ptrdiff_t>(4 * width_);
            groups.clear();
            append(groups, {0, step * static_cast<std::ptrdiff_t>(block * units_), units_, 1}, arithmetic_.steps, 0,
                   step);
            KLoop(arithmetic_, groups.data(), groups.size(), 0, step)
                .column_offsets(to, t_.block, {offsets_ + at, wide, nullptr, nullptr}, 0);
        }
    }

    void multiply(std::size_t first, std::size_t end, IntegerWorker& worker) const {
        const std::size_t rows = arithmetic_.kernels.block_mr, count = end - first;
        const bool in_place = arithmetic_.units.per == 4;
        const std::uint8_t* from = t_.a.data + first * t_.k;
        if (!in_place) {
            auto* to = worker.packed.get<std::uint8_t>(4 * count * blocks_ * units_);
            arithmetic_.units.pack({from, 1, t_.k, t_.k, count, count, arithmetic_.a_shift, 0, to});
            from = to;
        }
        const std::size_t a_step = in_place ? 4 : 4 * count;
        alignas(64) float sums[kMaxMR * kMaxNR];
        for (std::size_t panel = 0; panel < panels_; ++panel)
            for (std::size_t row = 0; row < count; row += rows) {
                const std::uint8_t* pointers[kMaxMR];
                const float* scales[kMaxMR];
                for (std::size_t r = 0; r < kMaxMR; ++r) {
                    const std::size_t at = std::min(row + r, count - 1);
                    pointers[r] = from + at * (in_place ? t_.k : 4);
                    scales[r] = t_.a_scales + (first + at) * blocks_;
                }
                const std::size_t numbers = panel * blocks_ * width_;
                arithmetic_.units.blocks({pointers, packed_ + panel * panel_bytes_, static_cast<std::ptrdiff_t>(a_step),
                                          static_cast<std::ptrdiff_t>(4 * width_), blocks_, units_, arithmetic_.steps,
                                          offsets_ + numbers, scales, scales_ + numbers, sums});
                write(sums, first + row, std::min(rows, count - row), panel * width_);
            }
    }

    void write(const float* sums, std::size_t row, std::size_t rows, std::size_t column) const {
        arithmetic_.kernels.block_epilogue({sums, rows, std::min(width_, t_.n - column), t_.scale,
                                            t_.bias == nullptr ? nullptr : t_.bias + column,
                                            t_.out + row * t_.n + column, t_.n, past_cache_});
    }
};

}  // namespace

void look_up(const std::uint8_t* from, std::uint8_t* to, std::size_t count, const std::uint8_t* table, int threads) {
    const auto look = kernels().integer.look_up;
    parallel_for(count, kGrain, threads,
                 [&](std::size_t begin, std::size_t end) { look(from + begin, to + begin, end - begin, table); });
}

void integer_block_matmul(const IntegerBlocks& t) {
    if (t.m * t.n == 0) return;
    const IntegerKernels& table = kernels().integer;
    const int a = table.exact ? 255 : table.largest(t.a.data, t.m * t.k);
    Arithmetic arithmetic(table, t.a.zero, a, t.b.zero, table.largest(t.b.data, t.n * t.k), t.block);
    if (arithmetic.b_zero != 0) arithmetic.take_words();  // a correction of rows in each block would cost as much
    const std::size_t work = t.m * t.n * t.k;
    const int threads = useful_threads(work, t.threads);
    Borrowed<IntegerWorkspace> space(static_cast<std::size_t>(threads));
    BlockProduct(t, arithmetic).run(*space, threads);
}

}  // namespace lograd
