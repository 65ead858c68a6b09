#include "kernels/sparse/plan.h"

#include <algorithm>

namespace lograd {
namespace {

// Measured on Zen 3 with 32 KB of L1 and 512 KB of L2: a panel leaves room for the lists that stream through.  Strips are
// wide, as packing X for dW serves a whole one: sums of dW that leave the L2 cache cost less than that.
constexpr std::size_t kPanelBytes = 28 << 10, kTileBytes = 256 << 10;
constexpr std::size_t kBandPixels = 512, kStripColumns = 4096, kMostBlockPixels = 512, kMostOutputs = 256;
constexpr std::size_t kMostTaps = 7;
// Vectors of input channels in a tile, by the taps that share its registers.
constexpr std::size_t kVectorsByTaps[kMostTaps + 1] = {0, 8, 6, 4, 3, 2, 2, 2};

std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// The size of parts of at most `limit` that are as equal as can be.
std::size_t even_part(std::size_t total, std::size_t limit) {
    return total == 0 ? 1 : divided_up(total, divided_up(total, std::max<std::size_t>(limit, 1)));
}

bool one_tap(const Axis& a) { return a.kernel == 1 && a.stride == 1 && a.padding == 0 && a.output == a.input; }

// Whether every input pixel is seen by some tap.
bool covers(const Axis& a) {
    if (a.output == 0) return a.input == 0;
    return a.dilation == 1 && a.kernel >= a.stride && Plan::extent(a, a.output) >= a.input + a.padding;
}

}  // namespace

Plan::Plan(const Convolution& convolution, std::size_t lanes) : layer(convolution) {
    // With one tap, pixels in a row need not know what row or, with channels last, what image they belong to.
    if (one_tap(layer.y) && one_tap(layer.x)) {
        const std::size_t plane = layer.y.output * layer.x.output;
        const bool last = layer.gradient_last && layer.input_last;
        layer.y.input = layer.y.output = last ? layer.batch * plane : 1;
        layer.x.input = layer.x.output = last ? 1 : plane;
        if (last) layer.batch = 1;
    }
    group_channels = layer.channels / layer.groups;
    group_outputs = layer.outputs / layer.groups;
    cut_channels(lanes);
    cut_pixels();
    cut_outputs();
}

void Plan::cut_channels(std::size_t lanes) {
    most_taps = even_part(layer.x.kernel, layer.x.dilation == 1 ? kMostTaps : 1);
    for (std::size_t tap = 0; tap < layer.x.kernel; tap += most_taps)
        taps.push_back({tap, std::min(tap + most_taps, layer.x.kernel)});
    const std::size_t vectors = divided_up(group_channels, lanes);
    tile_vectors = even_part(vectors, kVectorsByTaps[most_taps]);
    tiles = divided_up(vectors, tile_vectors);
    tile = tile_vectors * lanes;
    panel_row = most_taps * tile;
}

void Plan::cut_pixels() {
    const Axis &y = layer.y, &x = layer.x;
    const std::size_t budget = kPanelBytes / (tile * sizeof(float));  // input pixels in L1
    // Rows of the input that one row of the kernel sees are what has to fit.
    const auto rows_seen = [&](std::size_t outputs) { return outputs == 0 ? 0 : (outputs - 1) * advance(y) + 1; };
    const std::size_t width = x.output == 0 ? 0 : extent(x, x.output), plane = rows_seen(y.output) * width;
    std::size_t images = 1, rows = y.output, columns = x.output;
    if (plane == 0 || layer.batch == 0) return;
    if (plane <= budget) {
        const std::size_t by_pixels = std::max<std::size_t>(kMostBlockPixels / (y.output * x.output), 1);
        images = even_part(layer.batch, std::min(budget / plane, by_pixels));
    } else if (width <= budget) {
        const std::size_t by_pixels = std::max<std::size_t>(kMostBlockPixels / x.output, 1);
        rows = even_part(y.output, std::min((budget / width - 1) / advance(y) + 1, by_pixels));
    } else {
        rows = 1;
        const std::size_t reach = extent(x, 1), free = budget > reach ? (budget - reach) / advance(x) + 1 : 1;
        columns = even_part(x.output, std::min(std::max<std::size_t>(free, 32), kMostBlockPixels));
    }
    for (std::size_t i = 0; i < layer.batch; i += images)
        for (std::size_t r = 0; r < y.output; r += rows)
            for (std::size_t c = 0; c < x.output; c += columns)
                blocks.push_back({{i, std::min(i + images, layer.batch)},
                                  {r, std::min(r + rows, y.output)},
                                  {c, std::min(c + columns, x.output)}});
    for (const Rectangle& block : blocks) {
        most_block_images = std::max(most_block_images, block.image.size());
        most_block_pixels = std::max(most_block_pixels, block.pixels());
        most_block_area = std::max(most_block_area, area_of(block));
    }
    join_blocks(rows, columns);
}

// Blocks of so many rows and columns to bands.
void Plan::join_blocks(std::size_t rows, std::size_t columns) {
    const Axis &y = layer.y, &x = layer.x;
    // Bands grow along the one dimension in which blocks do not reach from end to end.
    const auto joined = [&](std::size_t first, std::size_t last) {
        const Rectangle &a = blocks[first], &b = blocks[last];
        return Rectangle{{a.image.begin, b.image.end}, {a.y.begin, b.y.end}, {a.x.begin, b.x.end}};
    };
    const bool by_column = columns < x.output, by_row = !by_column && rows < y.output;
    const std::size_t row_of_blocks = by_column ? divided_up(x.output, columns)
                                      : by_row  ? divided_up(y.output, rows)
                                                : blocks.size();
    std::size_t most = 1;
    while (most < row_of_blocks) {
        const Rectangle next = joined(0, most);
        if (next.pixels() > kBandPixels || area_of(next) * tile * sizeof(float) > kTileBytes) break;
        ++most;
    }
    most = even_part(row_of_blocks, most);
    // Kernels that overlap make bands of one image overlap, and these are added to dX in order.
    const bool overlap_y = extent(y, 1) > y.stride, overlap_x = extent(x, 1) > x.stride;
    overlap = (by_row && overlap_y) || (by_column && (overlap_x || overlap_y));
    zero_first = (by_column && overlap) || !covers(y) || !covers(x);
    for (std::size_t row = 0; row < blocks.size(); row += row_of_blocks)
        for (std::size_t first = row; first < row + row_of_blocks; first += most) {
            const std::size_t last = std::min(first + most, row + row_of_blocks);
            const Rectangle band = joined(first, last - 1);
            if (overlap && !bands.empty() && bands.back().image.begin == band.image.begin) ++chains.back().end;
            else chains.push_back({bands.size(), bands.size() + 1});
            bands.push_back(band);
            band_blocks.push_back({first, last});
            most_band_pixels = std::max(most_band_pixels, band.pixels());
            most_band_area = std::max(most_band_area, area_of(band));
        }
}

void Plan::cut_outputs() {
    const std::size_t in_panel = std::min(kPanelBytes / (panel_row * sizeof(float)), kMostOutputs);
    // Multiples of 32, so that strips of G begin where blocks of random numbers do.
    const std::size_t limit = in_panel < 32 ? std::max<std::size_t>(in_panel, 8) : in_panel / 32 * 32;
    most_outputs = even_part(group_outputs, limit);
    if (group_outputs > limit && limit >= 32) most_outputs = divided_up(most_outputs, 32) * 32;
    const std::size_t row_bytes = layer.x.kernel * tile * sizeof(float);
    const std::size_t in_tile = std::max<std::size_t>(kTileBytes / row_bytes, 1);
    const std::size_t runs_in_tile = std::max<std::size_t>(in_tile / kStripColumns, 1);
    for (std::size_t group = 0; group < layer.groups; ++group) {
        const std::size_t end = (group + 1) * group_outputs;
        for (std::size_t o = group * group_outputs; o < end; o += most_outputs)
            join_outputs({{o, std::min(o + most_outputs, end)}, {}, group}, runs_in_tile);
    }
    join_runs();
    std::size_t most_set = 1;
    for (const Outputs& set : sets) most_set = std::max(most_set, set.channels.size());
    kernel_rows = std::min(std::max<std::size_t>(in_tile / most_set, 1), layer.y.kernel);
}

// Adds a block of output channels to the last run and its set, or begins a new one.
void Plan::join_outputs(const Outputs& block, std::size_t runs_in_set) {
    const Span channels = block.channels;
    const auto in_group = [&](const std::vector<Outputs>& parts) {
        return !parts.empty() && parts.back().group == block.group;
    };
    const bool new_run = !in_group(runs) || channels.end - runs.back().channels.begin > kStripColumns;
    const bool new_set = new_run && (!in_group(sets) || sets.back().parts.size() >= runs_in_set);
    if (new_run) runs.push_back({channels, {output_blocks.size(), 0}, block.group});
    if (new_set) sets.push_back({channels, {runs.size() - 1, 0}, block.group});
    output_blocks.push_back(block);
    runs.back().channels.end = sets.back().channels.end = channels.end;
    runs.back().parts.end = output_blocks.size();
    sets.back().parts.end = runs.size();
}

// Runs to strips.
void Plan::join_runs() {
    for (std::size_t run = 0; run < runs.size(); ++run) {
        most_run = std::max(most_run, runs[run].channels.size());
        const std::size_t end = runs[run].channels.end;
        if (strips.empty() || end - runs[strips.back().begin].channels.begin > kStripColumns)
            strips.push_back({run, run});
        strips.back().end = run + 1;
    }
}

}  // namespace lograd
