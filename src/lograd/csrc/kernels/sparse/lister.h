// Makes the lists of the nonzero elements of G, pruning it on the way.

#pragma once

#include <array>
#include <vector>

#include "kernels/sparse/plan.h"
#include "kernels/sparse/sparse.h"
#include "kernels/sparse/two_way_lists.h"

namespace lograd {

class Lister {
public:
    Lister(const Plan&, const SparseBackward&, const SparseKernels&, Workspace&, int threads);

    // Makes the lists of as many bands as memory allows, from this one on; returns the first band whose lists do not exist.
    std::size_t list(std::size_t band);

    const Lists& of_pixels(std::size_t band, std::size_t part) const {
        return pixel_lists_[band * plan_.output_blocks.size() + part];
    }
    const Lists& of_outputs(std::size_t block, std::size_t run) const {
        return output_lists_[block * plan_.runs.size() + run];
    }

    // After all bands: counts of G, and dbias if it is wanted.
    void finish() const;

private:
    const Plan& plan_;
    const Convolution& layer_ = plan_.layer;
    const SparseBackward& task_;
    const SparseKernels& kernels_;
    Workspace& work_;
    const int threads_;
    const bool with_x_ = task_.d_x != nullptr, with_w_ = task_.d_weight != nullptr,
               with_bias_ = task_.d_bias != nullptr;
    const bool prunes_ = task_.threshold != nullptr && *task_.threshold > 0.0f;
    const std::size_t pixels_ = layer_.y.output * layer_.x.output;  // of an image

    std::vector<Lists> pixel_lists_;   // by band and part
    std::vector<Lists> output_lists_;  // by block and run
    std::size_t capacity_;
    ListMemory memory_;
    std::atomic<std::size_t> listed_{0};  // strips of bands in memory
    std::atomic<bool> full_{false};       // a band had no room, so those behind it have to wait
    using Tally = std::array<std::int64_t, 4>;
    std::vector<Tally> tallies_;  // by band and strip
    std::vector<char> failed_;    // by band and strip: its lists did not fit any more
    float* sums_ = nullptr;       // of G, by block and output channel

    // What both ways to walk a band need to know of it.
    struct Band {
        std::size_t number, pixels;
        Span blocks;
        std::vector<std::size_t> first_pixel;  // of each block
        std::uint32_t* where;                  // of each pixel: its place in dX, in floats
        std::uint32_t* offsets;                // of each pixel: its place in the panel of X of its block, in bytes
        std::uint32_t* rows;                   // room for output_places
        const std::uint32_t* output_offsets;   // of an output channel of a part: its place in the panel of W, in bytes
    };

    std::size_t most_bytes() const;
    std::size_t list_bands(Span bands);
    void list_strip(Worker&, std::size_t band, Span strip, Tally&);
    Band band_of(Worker&, std::size_t number) const;
    Row fetch(std::size_t start, std::size_t count, std::uint16_t* random, Found&) const;
    void pixel_places(const Rectangle&, std::size_t scale, std::uint32_t* out) const;
    void output_places(const Outputs& run, std::uint32_t* out) const;

    // G with channels last.
    Found list_pixels(Worker&, const Band&, Span strip);
    void list_block(const Band&, std::size_t block, Span parts, Span channels, std::uint16_t* random, float* sums,
                    TwoWayLists&, Found&);
    // G with channels first.
    Found list_planes(Worker&, const Band&, Span strip);
    void list_part(const Band&, std::size_t block, const Outputs& run, Span outputs, std::uint16_t* random,
                   TwoWayLists&, Found&);
};

}  // namespace lograd
