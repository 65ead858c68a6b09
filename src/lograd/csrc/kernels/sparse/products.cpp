#include "kernels/sparse/products.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"

namespace lograd {

Products::Products(const Plan& plan, const SparseBackward& task, const SparseKernels& kernels, Workspace& work,
                   int threads)
    : plan_(plan), task_(task), kernels_(kernels), work_(work), threads_(threads) {}

void Products::prepare() {
    if (task_.d_x == nullptr) return;
    pack_weight();
    if (finite_ && plan_.zero_first) clear_input_gradient();
}

void Products::add(const Lister& lister, Span bands) {
    if (task_.d_x != nullptr) input_products(lister, bands);
    if (task_.d_weight == nullptr) return;
    weight_products(lister, {plan_.band_blocks[bands.begin].begin, plan_.band_blocks[bands.end - 1].end});
}

// ------------------------------------------------------------------------------------------------------------------- dX

void Products::pack_weight() {
    float* packed = work_.weight.get<float>(plan_.tiles * layer_.outputs * panels_of_block() * plan_.panel_row);
    const WeightStrides& s = task_.strides;
    const std::size_t blocks = plan_.output_blocks.size();
    parallel_tasks(blocks * plan_.tiles, threads_, [&](std::size_t, std::size_t task) {
        const std::size_t tile = task / blocks, block = task % blocks;
        const Span outputs = plan_.output_blocks[block].channels, channels = channels_of_tile(tile);
        float* panel = packed + panel_at(tile, block);
        bool bad = false;
        for (std::size_t y = 0; y < layer_.y.kernel; ++y)
            for (const Span& taps : plan_.taps) {
                const float* from =
                    task_.weight + outputs.begin * s.output + channels.begin * s.channel + y * s.y + taps.begin * s.x;
                if (taps.size() == 1)
                    bad |= kernels_.pack(from, {outputs.size(), 1, channels.size(), s.output, s.channel},
                                         plan_.panel_row, panel);
                else
                    for (std::size_t o = 0; o < outputs.size(); ++o)
                        bad |= kernels_.pack(from + o * s.output, {taps.size(), 1, channels.size(), s.x, s.channel},
                                             plan_.tile, panel + o * plan_.panel_row);
                panel += outputs.size() * plan_.panel_row;
            }
        if (bad) finite_ = false;
    });
}

void Products::clear_input_gradient() {
    const std::size_t image = layer_.channels * layer_.y.input * layer_.x.input;
    parallel_tasks(layer_.batch, threads_,
                   [&](std::size_t, std::size_t i) { std::memset(task_.d_x + i * image, 0, image * sizeof(float)); });
}

void Products::input_products(const Lister& lister, Span bands) {
    std::vector<Span> chains;
    for (const Span& chain : plan_.chains) {
        const Span here{std::max(chain.begin, bands.begin), std::min(chain.end, bands.end)};
        if (here.begin < here.end) chains.push_back(here);
    }
    const std::size_t tiles = plan_.tiles * layer_.groups;
    parallel_tasks(chains.size() * tiles, threads_, [&](std::size_t worker, std::size_t task) {
        const Span chain = chains[task / tiles];
        for (std::size_t band = chain.begin; band < chain.end; ++band)
            input_product(lister, *work_.workers[worker], band, task % tiles / plan_.tiles, task % plan_.tiles);
    });
}

void Products::input_product(const Lister& lister, Worker& own, std::size_t band, std::size_t group, std::size_t tile) {
    const Rectangle& r = plan_.bands[band];
    const std::size_t columns = plan_.columns_of(r);
    auto* sums = own.panel.get<float>(plan_.most_band_area * plan_.tile);
    std::memset(sums, 0, plan_.area_of(r) * plan_.tile * sizeof(float));
    for (std::size_t block = 0; block < plan_.output_blocks.size(); ++block) {
        const Outputs& outputs = plan_.output_blocks[block];
        if (outputs.group != group) continue;
        const Lists& lists = lister.of_pixels(band, block);
        const float* panel = work_.weight.get<float>(0) + panel_at(tile, block);
        for (std::size_t y = 0; y < layer_.y.kernel; ++y)
            for (const Span& taps : plan_.taps) {
                float* to = sums + (y * layer_.y.dilation * columns + taps.begin * layer_.x.dilation) * plan_.tile;
                // Lists visit the panel in no order that the hardware could foresee.
                const std::size_t floats = outputs.channels.size() * plan_.panel_row;
                for (std::size_t i = 0; i < floats; i += 16) __builtin_prefetch(panel + i);
                multiply(lists, taps, panel, to);
                panel += floats;
            }
    }
    write_input_gradient(band, group, tile, sums);
}

void Products::write_input_gradient(std::size_t band, std::size_t group, std::size_t tile, const float* sums) {
    const Rectangle& r = plan_.bands[band];
    // Rows that the band before has written, if it belongs to the same image.
    std::ptrdiff_t written = 0;
    if (plan_.overlap && band > 0 && plan_.bands[band - 1].image.begin == r.image.begin) {
        const Rectangle& before = plan_.bands[band - 1];
        const std::size_t end = before.y.begin * layer_.y.stride + plan_.rows_of(before) * Plan::step(layer_.y);
        written = static_cast<std::ptrdiff_t>(end) - static_cast<std::ptrdiff_t>(layer_.y.padding);
    }
    over_lines(r, {0, plan_.rows_of(r)}, tile, group, task_.d_x, [&](const Line<float>& line) {
        if (line.data == nullptr) return;
        kernels_.unpack(sums + line.place + line.inside.begin * plan_.tile, plan_.tile, line.pixels,
                        plan_.zero_first || line.y < written, line.data);
    });
}

// ------------------------------------------------------------------------------------------------------------------- dW

void Products::weight_products(const Lister& lister, Span blocks) {
    std::size_t rows = plan_.kernel_rows;
    const std::size_t tiles = plan_.tiles * plan_.sets.size();
    while (rows > 1 && tiles * ((layer_.y.kernel + rows - 1) / rows) < static_cast<std::size_t>(threads_)) --rows;
    const std::size_t passes = (layer_.y.kernel + rows - 1) / rows;
    parallel_tasks(tiles * passes, threads_, [&](std::size_t worker, std::size_t task) {
        const std::size_t first = task % passes * rows, tile = task / passes % plan_.tiles;
        const std::size_t set = task / passes / plan_.tiles;
        const Span kernel{first, std::min(first + rows, layer_.y.kernel)};
        weight_product(lister, *work_.workers[worker], blocks, set, tile, kernel);
    });
}

// Sums go on from what the blocks before have left in dW, so that its bits do not depend on who took turns.
void Products::weight_product(const Lister& lister, Worker& own, Span blocks, std::size_t set, std::size_t tile,
                              Span kernel) {
    auto* panel = own.panel.get<float>(plan_.most_block_area * plan_.tile);
    const Outputs& outputs = plan_.sets[set];
    const std::size_t plane = outputs.channels.size() * plan_.weight_row(), size = kernel.size() * plane;
    auto* sums = own.weight_sums.get<float>(size);
    if (blocks.begin == 0) std::memset(sums, 0, size * sizeof(float));
    else
        over_weights(outputs.channels, tile, kernel, sums, [&](float* part, float* d_weight, const Pixels& rows) {
            kernels_.pack(d_weight, rows, plan_.tile, part);
        });
    for (std::size_t b = blocks.begin; b < blocks.end; ++b) {
        const std::size_t columns = plan_.columns_of(plan_.blocks[b]);
        pack_input(plan_.blocks[b], kernel, tile, outputs.group, panel);
        for (std::size_t y = 0; y < kernel.size(); ++y)
            for (std::size_t run = outputs.parts.begin; run < outputs.parts.end; ++run)
                for (const Span& taps : plan_.taps) {
                    const std::size_t down = y * layer_.y.dilation * columns;
                    multiply(lister.of_outputs(b, run), taps,
                             panel + (down + taps.begin * layer_.x.dilation) * plan_.tile,
                             sums + y * plane + taps.begin * plan_.tile);
                }
    }
    over_weights(outputs.channels, tile, kernel, sums, [&](float* part, float* d_weight, const Pixels& rows) {
        kernels_.unpack(part, plan_.tile, rows, false, d_weight);
    });
}

// The panel of X of a block: of its rows only those that these rows of the kernel see.
void Products::pack_input(const Rectangle& r, Span kernel, std::size_t tile, std::size_t group, float* panel) {
    const std::size_t first = kernel.begin * layer_.y.dilation;
    const std::size_t seen = plan_.rows_of(r) - (layer_.y.kernel - kernel.size()) * layer_.y.dilation;
    bool bad = false;
    over_lines(r, {first, first + seen}, tile, group, task_.x, [&](const Line<const float>& line) {
        float* to = panel + line.place;
        std::memset(to, 0, line.inside.begin * plan_.tile * sizeof(float));
        if (line.data != nullptr)
            bad |= kernels_.pack(line.data, line.pixels, plan_.tile, to + line.inside.begin * plan_.tile);
        const std::size_t behind = line.columns - line.inside.end;
        std::memset(to + line.inside.end * plan_.tile, 0, behind * plan_.tile * sizeof(float));
    });
    if (bad) finite_ = false;
}

}  // namespace lograd
