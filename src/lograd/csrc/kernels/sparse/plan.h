// How a convolution is cut into pieces that fit the caches.
//
// Pixels: a block is what a panel of X in the L1 cache serves (dW); a band is some blocks in a row, whose dX lies in the L2
// cache.  Output channels: a panel of W in the L1 cache serves a block, or part, of them (dX); a run is some of these,
// whose lists are made together; a set is the runs whose dW a pass over X sums; a strip is the runs that one pass of
// compression covers.  Input channels: tiles, of as many vectors as there are registers for.
//
// Nothing here depends on the number of threads.

#pragma once

#include <cstddef>
#include <vector>

#include "kernels/sparse/sparse.h"

namespace lograd {

struct Span {
    std::size_t begin, end;
    std::size_t size() const { return end - begin; }
};

// Output pixels: images, rows and columns.
struct Rectangle {
    Span image, y, x;
    std::size_t pixels() const { return image.size() * y.size() * x.size(); }
};

// A part of the output channels, within one group, and what of the next finer parts belongs to it.
struct Outputs {
    Span channels, parts;
    std::size_t group;
};

struct Plan {
    Convolution layer;
    std::size_t group_channels, group_outputs;

    // Taps of a kernel row that are neighbours share a pass; spans of them.
    std::vector<Span> taps;
    std::size_t most_taps;
    std::size_t tile, tile_vectors, tiles;  // channels and vectors of a tile, tiles of a group
    std::size_t panel_row;                  // floats of a row of a panel of W

    std::vector<Rectangle> blocks, bands;
    std::vector<Span> band_blocks;
    std::vector<Span> chains;  // bands that have to be added to dX one after the other
    bool overlap = false;      // of the dX of bands of an image
    bool zero_first = false;   // dX has to be zero before, as not all of it is reached, or some more than twice
    std::size_t most_block_images = 0, most_block_pixels = 0, most_block_area = 0;
    std::size_t most_band_pixels = 0, most_band_area = 0;

    std::vector<Outputs> output_blocks, runs, sets;
    std::vector<Span> strips;  // of runs
    std::size_t most_outputs = 0, most_run = 0;
    std::size_t kernel_rows;  // of a pass for dW

    Plan(const Convolution&, std::size_t lanes);

    // Floats of a row of dW as it is summed: all taps of a row of the kernel, a tile of channels each.
    std::size_t weight_row() const { return layer.x.kernel * tile; }
    // The input that belongs to a rectangle of output pixels: rows and columns that are skipped are left out.
    std::size_t rows_of(const Rectangle& r) const { return extent(layer.y, r.y.size()); }
    std::size_t columns_of(const Rectangle& r) const { return extent(layer.x, r.x.size()); }
    std::size_t area_of(const Rectangle& r) const { return r.image.size() * rows_of(r) * columns_of(r); }
    static std::size_t extent(const Axis& a, std::size_t outputs) {
        return a.kernel == 1 ? outputs : (outputs - 1) * a.stride + (a.kernel - 1) * a.dilation + 1;
    }
    // Of neighbouring output pixels in that input, and of the input pixels themselves.
    static std::size_t advance(const Axis& a) { return a.kernel == 1 ? 1 : a.stride; }
    static std::size_t step(const Axis& a) { return a.kernel == 1 ? a.stride : 1; }

private:
    void cut_channels(std::size_t lanes);
    void cut_pixels();
    void join_blocks(std::size_t rows, std::size_t columns);
    void cut_outputs();
    void join_outputs(const Outputs& block, std::size_t runs_in_set);
    void join_runs();
};

}  // namespace lograd
