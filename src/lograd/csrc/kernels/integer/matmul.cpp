// The product of two matrices of bytes.

#include <algorithm>
#include <vector>

#include "base/kept.h"
#include "base/parallel.h"
#include "base/tensor.h"
#include "isa/table.h"
#include "kernels/integer/blocking.h"
#include "kernels/integer/integer.h"
#include "kernels/integer/workspace.h"

namespace lograd {
namespace {

// The largest byte of a matrix one of whose strides is 1.
int largest(const IntegerKernels& table, const std::uint8_t* x, std::size_t batch, std::size_t batch_stride,
            std::size_t rows, std::size_t row_stride, std::size_t columns, std::size_t column_stride) {
    int most = 0;
    if (column_stride != 1) std::swap(rows, columns), std::swap(row_stride, column_stride);
    for (std::size_t b = 0; b < batch && most < 255; ++b) {
        const std::uint8_t* from = x + b * batch_stride;
        if (row_stride == columns) most = std::max(most, table.largest(from, rows * columns));
        else
            for (std::size_t r = 0; r < rows; ++r) most = std::max(most, table.largest(from + r * row_stride, columns));
    }
    return most;
}

Arithmetic arithmetic_of(const IntegerMatmul& t, const IntegerKernels& table) {
    // Where byte sums cannot overflow nobody asks for the largest byte of A.
    const bool known = table.exact && t.k < 60000;
    const int a = known ? 255 : largest(table, t.a.data, t.batch, t.a_batch, t.m, t.a_row, t.k, t.a_k);
    const int b = largest(table, t.b.data, t.batch, t.b_batch, t.k, t.b_k, t.n, t.b_column);
    return {table, t.a.zero, a, t.b.zero, b, t.k};
}

// One matrix of the batch.
class Product {
    const IntegerMatmul& t_;
    const Arithmetic& arithmetic_;
    const std::size_t units_, width_, panels_;
    const std::uint8_t *a_, *b_;
    float* out_;
    std::uint8_t* packed_ = nullptr;
    std::size_t steps_ = 0;  // units of a group
    const bool past_cache_;

public:
    Product(const IntegerMatmul& t, const Arithmetic& arithmetic, std::size_t index)
        : t_(t), arithmetic_(arithmetic), units_(arithmetic.count(t.k)), width_(arithmetic.kernels.nr),
          panels_(up(t.n, width_)), a_(t.a.data + index * t.a_batch), b_(t.b.data + index * t.b_batch),
          out_(t.out + index * t.m * t.n),
          past_cache_(past_cache(out_, t.m * t.n, Type::kFloat32) && t.n % kMaxNR == 0) {}

    std::size_t panels() const { return panels_; }
    std::ptrdiff_t panel_step() const { return static_cast<std::ptrdiff_t>(4 * width_); }
    std::size_t panel_bytes() const { return 4 * width_ * units_; }

    // Packs panels of B and finds their offsets.
    void pack(Buffer& panels, const ColumnTerms& columns, int threads) {
        packed_ = panels.get<std::uint8_t>(panels_ * panel_bytes());
        std::vector<Segment> groups;
        append(groups, {0, 0, units_, 1}, arithmetic_.steps, 0, panel_step());
        const KLoop k_loop(arithmetic_, groups.data(), groups.size(), 0, panel_step());
        parallel_tasks(panels_, threads, [&](std::size_t, std::size_t panel) {
            const std::size_t first = panel * width_;
            std::uint8_t* to = packed_ + panel * panel_bytes();
            arithmetic_.units.pack({b_ + first * t_.b_column, t_.b_k, t_.b_column, t_.k, std::min(width_, t_.n - first),
                                    width_, arithmetic_.b_shift, 0, to});
            k_loop.column_offsets(to, t_.k, columns, first);
        });
        steps_ = arithmetic_.steps_for({packed_, panels_, panel_bytes(), units_}, t_.m, threads);
    }

    // Rows [first, end), at most kBlocking.mc, by all panels of [panel, last).
    void rows(std::size_t first, std::size_t end, std::size_t panel, std::size_t last, const ColumnTerms& columns,
              IntegerWorker& worker) const {
        const Rows from = read(first, end, worker.packed);
        const std::size_t tile_rows = arithmetic_.kernels.mr, tiles = up(end - first, tile_rows);
        Sums* sums = worker.sums.get<Sums>(tiles);
        std::int64_t* offsets = nullptr;
        if (arithmetic_.b_zero != 0) {
            offsets = worker.offsets.get<std::int64_t>(tiles * tile_rows);
            for (std::size_t i = 0; i < tiles; ++i)
                from.k_loop(*this).row_offsets(from.pointers + i * tile_rows, offsets + i * tile_rows);
        }
        const auto write = [&](std::size_t i, std::size_t at) {
            const std::size_t row = first + i * tile_rows, column = at * width_;
            const float* scales = t_.rows.values;
            float spread[kMaxMR];
            if (scales != nullptr && t_.rows.count == 1) {
                std::fill(spread, spread + kMaxMR, scales[0]);
                scales = spread;
            } else if (scales != nullptr) scales += row;
            float* out[kMaxMR];
            for (std::size_t r = 0; r < kMaxMR; ++r) out[r] = out_ + (row + r) * t_.n + column;
            write_tile(arithmetic_, sums[i], columns,
                       {std::min(tile_rows, end - row), std::min(width_, t_.n - column), column,
                        offsets == nullptr ? nullptr : offsets + i * tile_rows, scales, out, past_cache_});
        };
        if (from.ends.size() > 1 || arithmetic_.wide) {
            for (; panel < last; ++panel) {
                sum(from, tiles, packed_ + panel * panel_bytes(), sums);
                for (std::size_t i = 0; i < tiles; ++i) write(i, panel);
            }
            return;
        }
        // Rows of a short k stay in the L1 cache while panels pass that are in the L2 cache, and few rows of the result
        // are written at a time.
        const std::size_t together =
            std::max<std::size_t>(1, kBlocking.nc_bytes / std::max<std::size_t>(1, panel_bytes()));
        for (; panel < last; panel += together)
            for (std::size_t i = 0; i < tiles; ++i)
                for (std::size_t at = panel; at < std::min(last, panel + together); ++at) {
                    arithmetic_.units.tile({from.pointers + i * tile_rows, packed_ + at * panel_bytes(),
                                            from.groups.data(), from.groups.size(), from.step, panel_step(),
                                            sums[i].tile, false});
                    write(i, at);
                }
    }

private:
    struct Rows {
        const std::uint8_t* pointers[kBlocking.mc + kMaxMR];
        std::ptrdiff_t step;
        std::vector<Segment> groups;    // all units
        std::vector<std::size_t> ends;  // of those groups that take their turn together

        KLoop k_loop(const Product& of) const {
            return {of.arithmetic_, groups.data(), groups.size(), step, of.panel_step()};
        }
    };

    // Rows of A where they lie, or side by side in units.
    Rows read(std::size_t first, std::size_t end, Buffer& packed) const {
        Rows rows;
        const std::size_t count = end - first;
        const bool in_place = arithmetic_.units.per == 4 && t_.a_k == 1 && t_.k % 4 == 0;
        const std::uint8_t* from = a_ + first * t_.a_row;
        const std::size_t tile_rows = arithmetic_.kernels.mr, tile_bytes = 4 * tile_rows * units_;
        if (!in_place) from = pack_tiles(from, count, packed);
        rows.step = in_place ? 4 : static_cast<std::ptrdiff_t>(4 * tile_rows);
        for (std::size_t r = 0; r < kBlocking.mc + kMaxMR; ++r) {
            const std::size_t row = std::min(r, count - 1);
            rows.pointers[r] =
                in_place ? from + row * t_.a_row : from + row / tile_rows * tile_bytes + 4 * (row % tile_rows);
        }
        for (std::size_t unit = 0; unit < units_; unit += kBlocking.kc) {
            std::vector<Segment> part;
            const auto at = static_cast<std::ptrdiff_t>(unit);
            append(part, {rows.step * at, panel_step() * at, std::min(kBlocking.kc, units_ - unit), 1}, steps_,
                   rows.step, panel_step());
            rows.groups.insert(rows.groups.end(), part.begin(), part.end());
            rows.ends.push_back(rows.groups.size());
        }
        if (units_ == 0) rows.ends.push_back(0);  // sums of nothing
        return rows;
    }

    // Rows of A as (tile, unit, MR).
    const std::uint8_t* pack_tiles(const std::uint8_t* from, std::size_t count, Buffer& packed) const {
        const std::size_t tile_rows = arithmetic_.kernels.mr, per = arithmetic_.units.per;
        const std::size_t bytes = up(count, tile_rows) * tile_rows * 4 * units_;
        auto* to = packed.get<std::uint8_t>(bytes + 4 * count * kBlocking.pack_units);
        std::uint8_t* side_by_side = to + bytes;
        for (std::size_t unit = 0; unit < units_; unit += kBlocking.pack_units) {
            const std::size_t units = std::min(kBlocking.pack_units, units_ - unit),
                              k = std::min(units * per, t_.k - unit * per);
            arithmetic_.units.pack(
                {from + unit * per * t_.a_k, t_.a_k, t_.a_row, k, count, count, arithmetic_.a_shift, 0, side_by_side});
            for (std::size_t row = 0; row < count; row += tile_rows)
                gather(4 * std::min(tile_rows, count - row), side_by_side + 4 * row, 4 * count,
                       to + 4 * (row * units_ + unit * tile_rows), 4 * tile_rows, units);
        }
        return to;
    }

    // The sums of all tiles of a panel.
    void sum(const Rows& from, std::size_t tiles, const std::uint8_t* panel, Sums* sums) const {
        const std::size_t tile_rows = arithmetic_.kernels.mr;
        if (arithmetic_.wide) {
            const KLoop k_loop = from.k_loop(*this);
            for (std::size_t i = 0; i < tiles; ++i) k_loop(from.pointers + i * tile_rows, panel, sums[i]);
            return;
        }
        for (std::size_t begin = 0, block = 0; block < from.ends.size(); begin = from.ends[block++])
            for (std::size_t i = 0; i < tiles; ++i)
                arithmetic_.units.tile({from.pointers + i * tile_rows, panel, from.groups.data() + begin,
                                        from.ends[block] - begin, from.step, panel_step(), sums[i].tile, block != 0});
    }
};

}  // namespace

void integer_matmul(const IntegerMatmul& t) {
    if (t.batch * t.m * t.n == 0) return;
    const Arithmetic arithmetic = arithmetic_of(t, kernels().integer);
    const std::size_t work = t.batch * t.m * t.n * std::max<std::size_t>(t.k, 1);
    const int threads = useful_threads(work, t.threads);
    const auto many = static_cast<std::size_t>(threads);
    Borrowed<IntegerWorkspace> borrowed(many);
    IntegerWorkspace& space = *borrowed;
    const std::size_t count = up(t.n, arithmetic.kernels.nr) * arithmetic.kernels.nr;
    const auto columns_in = [&](Buffer& memory) {
        const ColumnTerms columns(memory.get<char>(count * ColumnTerms::kBytes), count, t.bias != nullptr);
        columns.fill(t.n, count, t.columns, t.bias);
        return columns;
    };
    if (t.batch >= many && t.batch > 1) {  // small ones, each on its own
        parallel_tasks(t.batch, threads, [&](std::size_t worker, std::size_t index) {
            IntegerWorker& own = *space.workers[worker];
            const ColumnTerms columns = columns_in(own.columns);
            Product product(t, arithmetic, index);
            product.pack(own.panels, columns, 1);
            for (std::size_t row = 0; row < t.m; row += kBlocking.mc)
                product.rows(row, std::min(t.m, row + kBlocking.mc), 0, product.panels(), columns, own);
        });
        return;
    }
    const std::size_t bands = up(t.m, kBlocking.mc);
    for (std::size_t index = 0; index < t.batch; ++index) {
        const ColumnTerms columns = columns_in(space.columns);
        Product product(t, arithmetic, index);
        product.pack(space.panels, columns, threads);
        // Few rows: parts of the columns, too, so that all threads have something to do.
        const std::size_t parts = std::min(product.panels(), up(2 * many, bands));
        parallel_tasks(bands * parts, threads, [&](std::size_t worker, std::size_t task) {
            const std::size_t band = task / parts, part = task % parts;
            product.rows(band * kBlocking.mc, std::min(t.m, (band + 1) * kBlocking.mc), product.panels() * part / parts,
                         product.panels() * (part + 1) / parts, columns, *space.workers[worker]);
        });
    }
}

}  // namespace lograd
