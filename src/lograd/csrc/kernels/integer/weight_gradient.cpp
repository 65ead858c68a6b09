// The gradient of a convolution's weight.  It sums over images and pixels.  The images of a unit lie side by side, so
// that a tap of the kernel is nothing but another place to read from.  Rows are input channels, columns outputs.
//
// Both operands are packed for the micro-kernel: X as (tile, unit, y, x, MR), G as (panel, unit, y, x, NR).  Channels of
// a pixel would lie a multiple of 2 KB apart in wide layers, and share few sets of the L1 cache.

#include <algorithm>
#include <cstring>
#include <type_traits>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/kept.h"
#include "base/parallel.h"
#include "isa/table.h"
#include "kernels/integer/blocking.h"
#include "kernels/integer/integer.h"
#include "kernels/integer/window.h"
#include "kernels/integer/workspace.h"

namespace lograd {
namespace {

std::ptrdiff_t distance(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }

class WeightGradient {
    const IntegerConvolution& t_;
    const ConvolutionShape& l_;
    const Arithmetic& arithmetic_;  // a: input, b: gradient
    const PaddedAxis y_, x_;
    const std::size_t inputs_, outputs_;  // of a group
    const std::size_t per_, units_;       // images of a unit, units of the batch
    const std::size_t rows_, width_, size_, tiles_, panels_, taps_, tasks_;
    const std::size_t input_, gradient_;  // bytes of a unit of images in a tile and in a panel
    const std::size_t block_;             // units at a time
    std::uint8_t *x_units_ = nullptr, *g_units_ = nullptr;
    std::vector<Segment> groups_;    // rows of output pixels: where they lie in X, seen from the first tap, and in G
    std::vector<std::size_t> ends_;  // of those groups that take their turn together
    std::size_t summed_ = 0;         // elements that they have
    std::vector<std::int64_t> offsets_;
    std::int32_t* kept_ = nullptr;  // sums of all tasks, where several blocks add to them
    std::int64_t* kept_wide_ = nullptr;

public:
    WeightGradient(const IntegerConvolution& t, const Arithmetic& arithmetic)
        : t_(t), l_(t.layer), arithmetic_(arithmetic), y_(output_axis(l_.y)), x_(output_axis(l_.x)),
          inputs_(l_.channels / l_.groups), outputs_(l_.outputs / l_.groups), per_(arithmetic.units.per),
          units_(up(l_.batch, per_)), rows_(arithmetic.kernels.mr), width_(arithmetic.kernels.nr),
          size_(rows_ * width_), tiles_(up(inputs_, rows_)), panels_(up(outputs_, width_)),
          taps_(l_.y.kernel * l_.x.kernel), tasks_(l_.groups * panels_ * taps_), input_(y_.size * x_.size * rows_ * 4),
          gradient_(l_.y.output * l_.x.output * width_ * 4),
          block_(std::min(units_, std::max<std::size_t>(1, kBlocking.gradient_bytes /
                                                               (l_.groups * (tiles_ * input_ + panels_ * gradient_))))),
          offsets_(l_.groups * panels_ * width_) {}

    void run(IntegerWorkspace& space, int threads) {
        const std::size_t input = l_.groups * tiles_ * block_ * input_;
        const std::size_t gradient = l_.groups * panels_ * block_ * gradient_;
        x_units_ = space.input.get<std::uint8_t>(input);
        g_units_ = space.gradient.get<std::uint8_t>(gradient);
        // Borders, which stay, and elements beyond the last channel, which are read and not used.
        fill(x_units_, input, t_.b.zero - arithmetic_.a_shift);
        if (outputs_ % width_ != 0) std::memset(g_units_, 0, gradient);
        if (block_ < units_ && arithmetic_.wide) kept_wide_ = space.sums.get<std::int64_t>(tasks_ * tiles_ * size_);
        else if (block_ < units_) kept_ = space.sums.get<std::int32_t>(tasks_ * tiles_ * size_);
        for (std::size_t first = 0; first < units_; first += block_) {
            const std::size_t count = std::min(block_, units_ - first);
            pack(first, count, space, threads);
            const std::size_t length = count * l_.y.output * l_.x.output;
            const Panels panels{g_units_, l_.groups * panels_, block_ * gradient_, length};
            find_segments(count, arithmetic_.steps_for(panels, inputs_ * taps_, threads));
            if (arithmetic_.a_zero != 0)
                parallel_tasks(l_.groups * panels_, threads,
                               [&](std::size_t, std::size_t panel) { find_offsets(panel); });
            parallel_tasks(tasks_, threads, [&](std::size_t worker, std::size_t task) {
                multiply(task, first == 0, first + count == units_, *space.workers[worker]);
            });
        }
    }

private:
    void fill(std::uint8_t* to, std::size_t bytes, int value) const {
        if (per_ == 4) std::memset(to, value, bytes);
        else std::fill(reinterpret_cast<std::int16_t*>(to), reinterpret_cast<std::int16_t*>(to) + bytes / 2, value);
    }

    void pack(std::size_t first, std::size_t count, IntegerWorkspace& space, int threads) {
        const std::size_t g_row = l_.x.output * l_.outputs, g_image = l_.y.output * g_row;
        const std::size_t x_row = l_.x.input * l_.channels, x_image = l_.y.input * x_row;
        const std::size_t rows = l_.y.output + y_.kept;
        parallel_tasks(count * rows, threads, [&](std::size_t worker, std::size_t task) {
            const std::size_t unit = task / rows, row = task % rows, image = (first + unit) * per_;
            const std::size_t there = std::min(per_, l_.batch - image);  // others count as zeros
            Buffer& memory = space.workers[worker]->packed;
            if (row < l_.y.output) {
                auto* side_by_side = memory.get<std::uint8_t>(4 * g_row);
                arithmetic_.units.pack({t_.a.data + image * g_image + row * g_row, g_image, 1, there, g_row, g_row,
                                        arithmetic_.b_shift, t_.a.zero - arithmetic_.b_shift, side_by_side});
                spread(side_by_side, l_.outputs, outputs_, width_, l_.x.output, g_units_, gradient_,
                       unit * gradient_ + 4 * row * l_.x.output * width_);
                return;
            }
            const std::size_t y = row - l_.y.output, count_x = x_.kept * l_.channels;
            const std::size_t at = (y + y_.padding) * x_.size + x_.padding;
            auto* side_by_side = memory.get<std::uint8_t>(4 * count_x);
            arithmetic_.units.pack({t_.b.data + image * x_image + y * x_row, x_image, 1, there, count_x, count_x,
                                    arithmetic_.a_shift, t_.b.zero - arithmetic_.a_shift, side_by_side});
            spread(side_by_side, l_.channels, inputs_, rows_, x_.kept, x_units_, input_,
                   unit * input_ + 4 * at * rows_);
        });
    }

    // A row of pixels, of which each has its channels side by side, to tiles or panels of so many channels.
    void spread(const std::uint8_t* from, std::size_t channels, std::size_t of_group, std::size_t width,
                std::size_t pixels, std::uint8_t* to, std::size_t bytes, std::size_t at) const {
        std::size_t index = 0;
        for (std::size_t group = 0; group < l_.groups; ++group)
            for (std::size_t c = 0; c < of_group; c += width, ++index)
                gather(4 * std::min(width, of_group - c), from + 4 * (group * of_group + c), 4 * channels,
                       to + index * block_ * bytes + at, 4 * width, pixels);
    }

    void find_segments(std::size_t units, std::size_t steps) {
        groups_.clear(), ends_.clear();
        const std::size_t rows = units * l_.y.output,
                          together = std::max<std::size_t>(1, kBlocking.gradient_kc / l_.x.output);
        std::vector<Segment> part;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::size_t unit = row / l_.y.output, y = row % l_.y.output;
            append(part,
                   {distance(unit * input_ + 4 * y * l_.y.stride * x_.size * rows_),
                    distance(unit * gradient_ + 4 * y * l_.x.output * width_), l_.x.output, 1},
                   steps, a_step(), b_step());
            if ((row + 1) % together != 0 && row + 1 < rows) continue;
            groups_.insert(groups_.end(), part.begin(), part.end());
            ends_.push_back(groups_.size());
            part.clear();
        }
        summed_ = rows * l_.x.output * per_;
    }

    const std::uint8_t* panel_of(std::size_t group, std::size_t panel) const {
        return g_units_ + (group * panels_ + panel) * block_ * gradient_;
    }
    std::ptrdiff_t a_step() const { return distance(4 * l_.x.stride * rows_); }
    std::ptrdiff_t b_step() const { return distance(4 * width_); }
    KLoop k_loop() const { return {arithmetic_, groups_.data(), groups_.size(), a_step(), b_step()}; }

    // What the zero of X adds to the outputs of a panel: the same for all taps and inputs.
    void find_offsets(std::size_t index) {
        std::int32_t narrow[kMaxNR];
        const ColumnTerms columns{narrow, offsets_.data() + index * width_, nullptr, nullptr};
        k_loop().column_offsets(panel_of(index / panels_, index % panels_), summed_, columns, 0);
    }

    // All inputs of one group, by one tap and one panel of outputs.
    void multiply(std::size_t task, bool first, bool last, IntegerWorker& worker) const {
        const std::size_t tap = task % taps_, panel = task / taps_ % panels_, group = task / taps_ / panels_;
        const std::size_t ky = tap / l_.x.kernel, kx = tap % l_.x.kernel;
        const std::uint8_t* from = x_units_ + group * tiles_ * block_ * input_ +
                                   4 * (ky * l_.y.dilation * x_.size + kx * l_.x.dilation) * rows_;
        auto* pointers = worker.rows.get<const std::uint8_t*>(tiles_ * rows_);
        for (std::size_t r = 0; r < tiles_ * rows_; ++r)
            pointers[r] = from + r / rows_ * block_ * input_ + 4 * (r % rows_);
        const std::int64_t* offsets =
            arithmetic_.a_zero == 0 ? nullptr : offsets_.data() + (group * panels_ + panel) * width_;
        if (arithmetic_.wide) {
            std::int64_t* sums = kept_wide_ == nullptr ? worker.offsets.get<std::int64_t>(tiles_ * size_)
                                                       : kept_wide_ + task * tiles_ * size_;
            if (first) std::fill(sums, sums + tiles_ * size_, 0);
            add_wide(pointers, panel_of(group, panel), sums, worker);
            correct(pointers, offsets, sums);
            if (last) write(group, panel, tap, sums);
        } else {
            std::int32_t* sums =
                kept_ == nullptr ? worker.sums.get<std::int32_t>(tiles_ * size_) : kept_ + task * tiles_ * size_;
            add(pointers, panel_of(group, panel), sums, first);
            correct(pointers, offsets, sums);
            if (last) write(group, panel, tap, sums);
        }
    }

    // As many rows of pixels at a time as the L1 cache holds, by all tiles.
    void add(const std::uint8_t* const* pointers, const std::uint8_t* panel, std::int32_t* sums, bool first) const {
        for (std::size_t begin = 0, part = 0; part < ends_.size(); begin = ends_[part++])
            for (std::size_t tile = 0; tile < tiles_; ++tile)
                arithmetic_.units.tile({pointers + tile * rows_, panel, groups_.data() + begin, ends_[part] - begin,
                                        a_step(), b_step(), sums + tile * size_, !(first && part == 0)});
    }

    void add_wide(const std::uint8_t* const* pointers, const std::uint8_t* panel, std::int64_t* sums,
                  IntegerWorker& worker) const {
        Sums* own = worker.sums.get<Sums>(1);
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            k_loop()(pointers + tile * rows_, panel, *own);
            for (std::size_t i = 0; i < size_; ++i) sums[tile * size_ + i] += own->wide[i];
        }
    }

    // Takes away what zeros that are not 0 have added in this block.
    template <class Sum>
    void correct(const std::uint8_t* const* pointers, const std::int64_t* offsets, Sum* sums) const {
        using Whole = std::make_unsigned_t<Sum>;
        if (arithmetic_.b_zero == 0 && offsets == nullptr) return;
        Whole of_columns[kMaxNR] = {};
        for (std::size_t c = 0; offsets != nullptr && c < width_; ++c) of_columns[c] = static_cast<Whole>(offsets[c]);
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            std::int64_t rows[kMaxMR] = {};
            k_loop().row_offsets(pointers + tile * rows_, rows);
            for (std::size_t r = 0; r < rows_; ++r, sums += width_) {
                const auto of_row = static_cast<Whole>(rows[r]);
                for (std::size_t c = 0; c < width_; ++c)
                    sums[c] = static_cast<Sum>(static_cast<Whole>(sums[c]) - of_row - of_columns[c]);
            }
        }
    }

    template <class Sum> void write(std::size_t group, std::size_t panel, std::size_t tap, const Sum* sums) const {
        const std::size_t first = panel * width_, columns = std::min(width_, outputs_ - first);
        std::size_t c = 0;
        for (; std::is_same_v<Sum, std::int32_t> && c + 4 <= columns; c += 4) {
            float* out[4];
            float scales[4];
            for (std::size_t i = 0; i < 4; ++i) out[i] = row_of(group, first + c + i, tap, scales[i]);
            write_four(reinterpret_cast<const std::int32_t*>(sums) + c, scales, out);
        }
        for (; c < columns; ++c) {
            float scale, *out = row_of(group, first + c, tap, scale);
            for (std::size_t r = 0; r < inputs_; ++r) out[r] = static_cast<float>(sums[r * width_ + c]) * scale;
        }
    }

    // The inputs of one output and one tap, and their scale.
    float* row_of(std::size_t group, std::size_t column, std::size_t tap, float& scale) const {
        const std::size_t output = group * outputs_ + column;
        scale = t_.rows.values == nullptr ? 1.0f : t_.rows.values[t_.rows.count > 1 ? output : 0];
        return t_.out + (output * taps_ + tap) * inputs_;
    }

    // Four columns of sums become four rows.
    void write_four(const std::int32_t* sums, const float* scales, float* const* out) const {
        std::size_t r = 0;
#ifdef __SSE2__
        for (; r + 4 <= inputs_; r += 4) {
            __m128 v[4];
            for (std::size_t i = 0; i < 4; ++i)
                v[i] = _mm_cvtepi32_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sums + (r + i) * width_)));
            _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
            for (std::size_t i = 0; i < 4; ++i) _mm_storeu_ps(out[i] + r, _mm_mul_ps(v[i], _mm_set1_ps(scales[i])));
        }
#endif
        for (; r < inputs_; ++r)
            for (std::size_t i = 0; i < 4; ++i) out[i][r] = static_cast<float>(sums[r * width_ + i]) * scales[i];
    }
};

}  // namespace

void integer_weight_gradient(const IntegerConvolution& t) {
    const ConvolutionShape& l = t.layer;
    const std::size_t pixels = l.y.output * l.x.output, taps = l.y.kernel * l.x.kernel;
    const std::size_t weights = l.outputs * (l.channels / l.groups) * taps;
    if (weights == 0) return;
    if (l.batch * pixels == 0) return std::fill(t.out, t.out + weights, 0.0f), void();
    if (is_pixelwise(l)) {
        IntegerMatmul product{};
        product.batch = 1, product.m = l.outputs, product.n = l.channels, product.k = l.batch * pixels;
        product.a = t.a, product.a_row = 1, product.a_k = l.outputs;
        product.b = t.b, product.b_k = l.channels, product.b_column = 1;
        product.rows = t.rows;
        product.out = t.out;
        product.threads = t.threads;
        return integer_matmul(product);
    }
    const IntegerKernels& table = kernels().integer;
    const std::size_t k = up(l.batch, 4) * 4 * pixels;
    const int g = table.largest(t.a.data, l.batch * pixels * l.outputs);
    const int x =
        table.exact && k < 60000 ? 255 : table.largest(t.b.data, l.batch * l.y.input * l.x.input * l.channels);
    const Arithmetic arithmetic(table, t.b.zero, x, t.a.zero, g, k);
    const std::size_t work = k * weights;
    const int threads = useful_threads(work, t.threads);
    Borrowed<IntegerWorkspace> space(static_cast<std::size_t>(threads));
    WeightGradient(t, arithmetic).run(*space, threads);
}

}  // namespace lograd
