// The two products of the lists of G: with W, which gives dX, and with X, which gives dW.

#pragma once

#include <atomic>
#include <cstring>

#include "kernels/sparse/lister.h"

namespace lograd {

class Products {
public:
    Products(const Plan&, const SparseBackward&, const SparseKernels&, Workspace&, int threads);

    // Before all bands.
    void prepare();
    // Adds the products of the lists of these bands to the results.
    void add(const Lister&, Span bands);

    // False if an element of X or W that was seen was not finite.
    bool finite() const { return finite_; }

private:
    const Plan& plan_;
    const Convolution& layer_ = plan_.layer;
    const SparseBackward& task_;
    const SparseKernels& kernels_;
    Workspace& work_;
    const int threads_;
    std::atomic<bool> finite_{true};

    // A row of the input that belongs to a rectangle of output pixels.
    template <class T> struct Line {
        std::size_t place, columns;  // in the tile: its place in floats, and all its columns
        Span inside;                 // those of them that are not padding
        T* data;                     // their elements in the input; null if all is padding
        const Pixels& pixels;        // how these lie there
        std::ptrdiff_t y;            // the number of the row in the input
    };

    Span channels_of_tile(std::size_t tile) const {
        const std::size_t begin = tile * plan_.tile;
        return {begin, std::min(begin + plan_.tile, plan_.group_channels)};
    }
    // Panels of W by tile, output block, kernel row and taps.
    std::size_t panels_of_block() const { return layer_.y.kernel * plan_.taps.size(); }
    std::size_t panel_at(std::size_t tile, std::size_t block) const {
        return (tile * layer_.outputs + plan_.output_blocks[block].channels.begin) * panels_of_block() *
               plan_.panel_row;
    }
    void multiply(const Lists& lists, const Span& taps, const float* panel, float* tile) const {
        kernels_.multiply[taps.size() * plan_.tile_vectors](lists, reinterpret_cast<const char*>(panel), tile);
    }
    template <class T, class Go>
    void over_lines(const Rectangle&, Span rows, std::size_t tile, std::size_t group, T* data, Go go) const;
    template <class Go> void over_weights(Span outputs, std::size_t tile, Span kernel, float* sums, Go go) const;

    void pack_weight();
    void clear_input_gradient();
    void input_products(const Lister&, Span bands);
    void input_product(const Lister&, Worker&, std::size_t band, std::size_t group, std::size_t tile);
    void write_input_gradient(std::size_t band, std::size_t group, std::size_t tile, const float* sums);
    void weight_products(const Lister&, Span blocks);
    void weight_product(const Lister&, Worker&, Span blocks, std::size_t set, std::size_t tile, Span kernel);
    void pack_input(const Rectangle&, Span kernel, std::size_t tile, std::size_t group, float* panel);
};

// Calls go(line) for each of these rows of the input that belongs to a rectangle.
template <class T, class Go>
void Products::over_lines(const Rectangle& r, Span rows, std::size_t tile, std::size_t group, T* data, Go go) const {
    const std::size_t columns = plan_.columns_of(r), plane = layer_.y.input * layer_.x.input;
    const Span channels = channels_of_tile(tile);
    const std::size_t channel = group * plan_.group_channels + channels.begin;
    const std::size_t step_y = Plan::step(layer_.y), step_x = Plan::step(layer_.x);
    const auto left =
        static_cast<std::ptrdiff_t>(r.x.begin * layer_.x.stride) - static_cast<std::ptrdiff_t>(layer_.x.padding);
    const auto width = static_cast<std::ptrdiff_t>(layer_.x.input), step = static_cast<std::ptrdiff_t>(step_x);
    const std::size_t before = left >= 0 ? 0 : static_cast<std::size_t>((-left + step - 1) / step);
    const std::size_t after = left >= width ? 0 : static_cast<std::size_t>((width - left + step - 1) / step);
    const Span inside{std::min(before, columns), std::max(std::min(after, columns), std::min(before, columns))};
    const Pixels pixels{inside.size(), step_x, channels.size(), layer_.input_last ? layer_.channels : 1,
                        layer_.input_last ? 1 : plane};
    for (std::size_t i = r.image.begin; i < r.image.end; ++i)
        for (std::size_t row = rows.begin; row < rows.end; ++row) {
            const auto y = static_cast<std::ptrdiff_t>(r.y.begin * layer_.y.stride + row * step_y) -
                           static_cast<std::ptrdiff_t>(layer_.y.padding);
            const std::size_t number = (i - r.image.begin) * plan_.rows_of(r) + (row - rows.begin);
            const std::size_t place = number * columns * plan_.tile;
            const bool exists = y >= 0 && y < static_cast<std::ptrdiff_t>(layer_.y.input) && inside.size() > 0;
            if (!exists) {
                go(Line<T>{place, columns, {0, 0}, nullptr, pixels, y});
                continue;
            }
            const std::size_t x = static_cast<std::size_t>(left + static_cast<std::ptrdiff_t>(inside.begin * step_x));
            const std::size_t pixel = static_cast<std::size_t>(y) * layer_.x.input + x;
            T* at = data + (layer_.input_last ? (i * plane + pixel) * layer_.channels + channel
                                              : (i * layer_.channels + channel) * plane + pixel);
            go(Line<T>{place, columns, inside, at, pixels, y});
        }
}

// Calls go(rows, place in dW, shape) for the rows of sums of these output channels and of these rows of the kernel.
template <class Go> void Products::over_weights(Span outputs, std::size_t tile, Span kernel, float* sums, Go go) const {
    const WeightStrides& s = task_.strides;
    const Span channels = channels_of_tile(tile);
    const bool one = layer_.x.kernel == 1;  // then the rows of all output channels are as far from each other
    for (std::size_t y = kernel.begin; y < kernel.end; ++y)
        for (std::size_t o = outputs.begin; o < outputs.end; o = one ? outputs.end : o + 1) {
            float* at = task_.d_weight + o * s.output + channels.begin * s.channel + y * s.y;
            const Pixels rows{one ? outputs.size() : layer_.x.kernel, 1, channels.size(), one ? s.output : s.x,
                              s.channel};
            go(sums, at, rows);
            sums += (one ? outputs.size() : 1) * plan_.weight_row();
        }
}

}  // namespace lograd
