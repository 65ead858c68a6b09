// The output of a convolution, and the gradient of its input: both slide a kernel over padded images.

#include <algorithm>
#include <cstring>

#include "base/kept.h"
#include "base/parallel.h"
#include "base/tensor.h"
#include "isa/table.h"
#include "kernels/integer/blocking.h"
#include "kernels/integer/integer.h"
#include "kernels/integer/window.h"
#include "kernels/integer/workspace.h"

namespace lograd {
namespace {

// Which is summed over, and which the result has.
struct Channels {
    std::size_t summed, results;  // of one group
    std::size_t image, result;    // of all groups, in memory
};

// One phase of both axes: the results that meet the same taps.
struct Phase {
    const AxisPhase *y, *x;
    std::vector<Segment> segments;  // without neighbours in memory
    std::size_t first_tap, taps;
    std::vector<Segment> groups;  // the same, cut
};

class Sliding {
    const IntegerConvolution& t_;
    const Arithmetic& arithmetic_;
    const PaddedAxis &y_, &x_;
    const Channels channels_;
    const bool transposed_;  // weights are summed over their outputs
    const std::size_t out_height_, out_width_;
    const std::size_t units_, pixel_, image_, width_, panels_, panel_bytes_;
    std::vector<Phase> phases_;
    std::uint8_t* packed_ = nullptr;

public:
    Sliding(const IntegerConvolution& t, const Arithmetic& arithmetic, const PaddedAxis& y, const PaddedAxis& x,
            Channels channels, bool transposed)
        : t_(t), arithmetic_(arithmetic), y_(y), x_(x), channels_(channels), transposed_(transposed),
          out_height_(transposed ? t.layer.y.input : t.layer.y.output),
          out_width_(transposed ? t.layer.x.input : t.layer.x.output), units_(arithmetic.count(channels.summed)),
          pixel_(4 * units_), image_(y.size * x.size * pixel_), width_(arithmetic.kernels.nr),
          panels_(up(channels.results, width_)),
          panel_bytes_(t.layer.y.kernel * t.layer.x.kernel * units_ * 4 * width_) {
        find_phases();
    }

    // All groups, one after the other.
    void run(IntegerWorkspace& space, int threads) {
        for (std::size_t group = 0; group < t_.layer.groups; ++group) {
            pack_weights(group, space.panels, threads);
            cut_segments(threads);
            slide(group, space, columns_of(group, space, threads), threads);
        }
    }

private:
    void find_phases() {
        std::size_t first = 0;
        for (const AxisPhase& y : y_.phases)
            for (const AxisPhase& x : x_.phases) {
                Phase phase{&y, &x, {}, first, y.taps.size() * x.taps.size(), {}};
                std::size_t at = 0;
                for (const AxisTap& tap_y : y.taps)
                    for (const AxisTap& tap_x : x.taps) {
                        const std::size_t offset = (tap_y.offset * x_.size + tap_x.offset) * pixel_;
                        auto& all = phase.segments;
                        // Neighbours in memory are one segment.
                        if (!all.empty() && static_cast<std::size_t>(all.back().a) + 4 * all.back().units == offset)
                            all.back().units += units_;
                        else
                            all.push_back(
                                {static_cast<std::ptrdiff_t>(offset), static_cast<std::ptrdiff_t>(at), units_, 1});
                        at += units_ * 4 * width_;
                    }
                first += phase.taps;
                phases_.push_back(std::move(phase));
            }
    }

    void cut_segments(int threads) {
        const Panels panels{packed_, panels_, panel_bytes_, panel_bytes_ / (4 * width_)};
        const std::size_t pixels = t_.layer.batch * out_height_ * out_width_;
        const std::size_t steps = arithmetic_.steps_for(panels, pixels / phases_.size(), threads);
        for (Phase& phase : phases_) {
            phase.groups.clear();
            for (const Segment& each : phase.segments)
                append(phase.groups, each, steps, 4, static_cast<std::ptrdiff_t>(4 * width_));
        }
    }

    // Panels of all phases; a phase has the taps that are its own, so that all together are the kernel once.
    void pack_weights(std::size_t group, Buffer& panels, int threads) {
        const ConvolutionShape& l = t_.layer;
        const std::size_t inputs = l.channels / l.groups, outputs = l.outputs / l.groups;
        const std::size_t taps = l.y.kernel * l.x.kernel, output_stride = taps * inputs;
        packed_ = panels.get<std::uint8_t>(panels_ * panel_bytes_);
        const std::uint8_t* weight = t_.b.data + group * outputs * output_stride;
        parallel_tasks(panels_, threads, [&](std::size_t, std::size_t panel) {
            const std::size_t first = panel * width_, columns = std::min(width_, channels_.results - first);
            std::uint8_t* to = packed_ + panel * panel_bytes_;
            for (const Phase& phase : phases_)
                for (const AxisTap& y : phase.y->taps)
                    for (const AxisTap& x : phase.x->taps) {
                        const std::uint8_t* from = weight + (y.kernel * l.x.kernel + x.kernel) * inputs;
                        if (transposed_)
                            arithmetic_.units.pack(
                                {from + first, output_stride, 1, outputs, columns, width_, arithmetic_.b_shift, 0, to});
                        else
                            arithmetic_.units.pack({from + first * output_stride, 1, output_stride, inputs, columns,
                                                    width_, arithmetic_.b_shift, 0, to});
                        to += units_ * 4 * width_;
                    }
        });
    }

    const std::uint8_t* panel_of(const Phase& phase, std::size_t panel) const {
        return packed_ + panel * panel_bytes_ + phase.first_tap * units_ * 4 * width_;
    }

    KLoop k_loop_of(const Phase& phase) const {
        return {arithmetic_, phase.groups.data(), phase.groups.size(), 4, static_cast<std::ptrdiff_t>(4 * width_)};
    }

    // The columns of each phase.
    std::vector<ColumnTerms> columns_of(std::size_t group, IntegerWorkspace& space, int threads) const {
        const std::size_t count = panels_ * width_, first = group * channels_.results;
        char* memory = space.columns.get<char>(count * ColumnTerms::kBytes * phases_.size());
        Scales scales = t_.columns;
        if (scales.values != nullptr && scales.count > 1) scales.values += first;
        std::vector<ColumnTerms> all;
        for (const Phase& phase : phases_) {
            const ColumnTerms columns(memory, count, t_.bias != nullptr);
            memory += count * ColumnTerms::kBytes;
            columns.fill(channels_.results, count, scales, t_.bias == nullptr ? nullptr : t_.bias + first);
            // Elements beyond the channels are as the zero of A, so they count as if they were there.
            const std::size_t k = phase.taps * units_ * arithmetic_.units.per;
            parallel_tasks(panels_, threads, [&](std::size_t, std::size_t panel) {
                k_loop_of(phase).column_offsets(panel_of(phase, panel), k, columns, panel * width_);
            });
            all.push_back(columns);
        }
        return all;
    }

    void slide(std::size_t group, IntegerWorkspace& space, const std::vector<ColumnTerms>& columns, int threads) const {
        const std::size_t pixels = out_height_ * out_width_;
        const std::size_t together =
            std::min(up(kBlocking.image_pixels, pixels), std::max<std::size_t>(1, kBlocking.image_bytes / image_));
        const std::size_t tasks = up(t_.layer.batch, together);
        const std::size_t parts = std::min(panels_, up(2 * static_cast<std::size_t>(threads), tasks));
        parallel_tasks(tasks * parts, threads, [&](std::size_t worker, std::size_t task) {
            const std::size_t first = task / parts * together, part = task % parts;
            const std::size_t images = std::min(together, t_.layer.batch - first);
            IntegerWorker& own = *space.workers[worker];
            const std::uint8_t* padded = pad(group, first, images, own.packed);
            for (std::size_t i = 0; i < phases_.size(); ++i)
                multiply(phases_[i], columns[i], group, first, images, padded, panels_ * part / parts,
                         panels_ * (part + 1) / parts, own);
        });
    }

    // Copies of images with a border, in units.
    const std::uint8_t* pad(std::size_t group, std::size_t first, std::size_t images, Buffer& memory) const {
        auto* to = memory.get<std::uint8_t>(images * image_ + 64);
        const bool bytes = arithmetic_.units.per == 4;
        const std::size_t channels = channels_.summed, all = channels_.image;
        const int border = bytes ? arithmetic_.a_zero : 0;
        const std::size_t left = x_.padding * pixel_, inside = x_.kept * pixel_, row_bytes = x_.size * pixel_;
        const bool whole = channels * (bytes ? 1 : 2) == pixel_;  // nothing is left between pixels
        if (!whole) std::memset(to, border, images * image_);
        const std::size_t height = transposed_ ? t_.layer.y.output : t_.layer.y.input;
        const std::size_t width = transposed_ ? t_.layer.x.output : t_.layer.x.input;
        for (std::size_t n = 0; whole && n < images; ++n)
            for (std::size_t y = 0; y < y_.size; ++y) {
                std::uint8_t* row = to + n * image_ + y * row_bytes;
                const bool there = y >= y_.padding && y < y_.padding + y_.kept;
                std::memset(row, border, there ? left : row_bytes);
                if (there) std::memset(row + left + inside, border, row_bytes - left - inside);
            }
        for (std::size_t n = 0; n < images; ++n)
            for (std::size_t y = 0; y < y_.kept; ++y) {
                const std::uint8_t* from = t_.a.data + (((first + n) * height + y) * width) * all + group * channels;
                std::uint8_t* row = to + n * image_ + ((y + y_.padding) * x_.size + x_.padding) * pixel_;
                if (bytes && channels == pixel_ && all == pixel_) std::memcpy(row, from, x_.kept * pixel_);
                else if (bytes)
                    for (std::size_t x = 0; x < x_.kept; ++x) std::memcpy(row + x * pixel_, from + x * all, channels);
                else
                    for (std::size_t x = 0; x < x_.kept; ++x) {
                        auto* words = reinterpret_cast<std::int16_t*>(row + x * pixel_);
                        for (std::size_t c = 0; c < channels; ++c)
                            words[c] = static_cast<std::int16_t>(from[x * all + c] - arithmetic_.a_shift);
                    }
            }
        return to;
    }

    void multiply(const Phase& phase, const ColumnTerms& columns, std::size_t group, std::size_t first,
                  std::size_t images, const std::uint8_t* padded, std::size_t panel, std::size_t last,
                  IntegerWorker& worker) const {
        const std::size_t pixels = images * phase.y->count * phase.x->count, rows = arithmetic_.kernels.mr;
        const std::size_t tiles = up(pixels, rows);
        auto* from = worker.rows.get<const std::uint8_t*>(tiles * rows);
        auto* out = worker.results.get<float*>(tiles * rows);
        std::size_t i = 0;
        for (std::size_t n = 0; n < images; ++n)
            for (std::size_t y = 0; y < phase.y->count; ++y)
                for (std::size_t x = 0; x < phase.x->count; ++x, ++i) {
                    const std::size_t at_y = phase.y->from_first + y * phase.y->from_step;
                    const std::size_t at_x = phase.x->from_first + x * phase.x->from_step;
                    from[i] = padded + n * image_ + (at_y * x_.size + at_x) * pixel_;
                    const std::size_t to_y = phase.y->first + y * phase.y->step,
                                      to_x = phase.x->first + x * phase.x->step;
                    out[i] = t_.out + (((first + n) * out_height_ + to_y) * out_width_ + to_x) * channels_.result +
                             group * channels_.results;
                }
        for (; i < tiles * rows; ++i) from[i] = from[i - 1], out[i] = out[i - 1];
        if (phase.segments.empty()) return write_nothing(columns, out, pixels, panel * width_, last * width_);
        const KLoop k_loop = k_loop_of(phase);
        std::int64_t* offsets = nullptr;
        if (arithmetic_.b_zero != 0) {
            offsets = worker.offsets.get<std::int64_t>(tiles * rows);
            for (std::size_t tile = 0; tile < tiles; ++tile)
                k_loop.row_offsets(from + tile * rows, offsets + tile * rows);
        }
        const std::size_t elements = t_.layer.batch * out_height_ * out_width_ * channels_.result;
        const bool past = past_cache(t_.out, elements, Type::kFloat32) && channels_.result % kMaxNR == 0 &&
                          channels_.results % kMaxNR == 0;
        Sums* sums = worker.sums.get<Sums>(1);
        // Rows stay in the L1 cache while panels pass that are in the L2 cache.
        const std::size_t together = std::max<std::size_t>(1, kBlocking.nc_bytes / (phase.taps * units_ * 4 * width_));
        for (; panel < last; panel += together)
            for (std::size_t tile = 0; tile < tiles; ++tile)
                for (std::size_t at = panel; at < std::min(last, panel + together); ++at) {
                    const std::size_t column = at * width_;
                    float* to[kMaxMR];
                    k_loop(from + tile * rows, panel_of(phase, at), *sums);
                    for (std::size_t r = 0; r < rows; ++r) to[r] = out[tile * rows + r] + column;
                    write_tile(arithmetic_, *sums, columns,
                               {std::min(rows, pixels - tile * rows), std::min(width_, channels_.results - column),
                                column, offsets == nullptr ? nullptr : offsets + tile * rows, nullptr, to, past});
                }
    }

    // Results that meet no tap: sums of nothing, scaled as all others.
    void write_nothing(const ColumnTerms& columns, float* const* out, std::size_t pixels, std::size_t first,
                       std::size_t end) const {
        end = std::min(end, channels_.results);
        std::vector<float> values(end - first);
        for (std::size_t c = 0; c < values.size(); ++c) {
            values[c] = 0.0f * columns.scales[first + c];
            if (columns.bias != nullptr) values[c] += columns.bias[first + c];
        }
        for (std::size_t i = 0; i < pixels; ++i) std::copy(values.begin(), values.end(), out[i] + first);
    }
};

// A convolution with a kernel of 1 x 1 as the product of a row for each pixel and the weights.
IntegerMatmul pixels_times_weights(const IntegerConvolution& t, std::size_t pixels, std::size_t summed,
                                   std::size_t results) {
    IntegerMatmul product{};
    product.batch = 1, product.m = pixels, product.n = results, product.k = summed;
    product.a = t.a, product.a_row = summed, product.a_k = 1;
    product.b = t.b;
    product.columns = t.columns;
    product.out = t.out;
    product.threads = t.threads;
    return product;
}

int threads_of(const IntegerConvolution& t) {
    const ConvolutionShape& l = t.layer;
    const std::size_t work =
        l.batch * l.outputs * l.y.output * l.x.output * (l.channels / l.groups) * l.y.kernel * l.x.kernel;
    return useful_threads(work, t.threads);
}

void slide(const IntegerConvolution& t, bool transposed) {
    const ConvolutionShape& l = t.layer;
    const PaddedAxis y = transposed ? input_gradient_axis(l.y) : output_axis(l.y);
    const PaddedAxis x = transposed ? input_gradient_axis(l.x) : output_axis(l.x);
    const std::size_t inputs = l.channels / l.groups, outputs = l.outputs / l.groups;
    const Channels channels = transposed ? Channels{outputs, inputs, l.outputs, l.channels}
                                         : Channels{inputs, outputs, l.channels, l.outputs};
    const std::size_t pixels = transposed ? l.y.output * l.x.output : l.y.input * l.x.input;
    const IntegerKernels& table = kernels().integer;
    const std::size_t k = l.y.kernel * l.x.kernel * channels.summed;
    const int a = table.exact && k < 60000 ? 255 : table.largest(t.a.data, l.batch * pixels * channels.image);
    const int b = table.largest(t.b.data, l.outputs * inputs * l.y.kernel * l.x.kernel);
    const Arithmetic arithmetic(table, t.a.zero, a, t.b.zero, b, k);
    const int threads = threads_of(t);
    Borrowed<IntegerWorkspace> space(static_cast<std::size_t>(threads));
    Sliding(t, arithmetic, y, x, channels, transposed).run(*space, threads);
}

}  // namespace

void integer_convolution(const IntegerConvolution& t) {
    const ConvolutionShape& l = t.layer;
    IntegerMatmul product = pixels_times_weights(t, l.batch * l.y.output * l.x.output, l.channels, l.outputs);
    if (product.m * product.n == 0) return;
    if (!is_pixelwise(l)) return slide(t, false);
    product.b_k = 1, product.b_column = l.channels;
    product.bias = t.bias;
    integer_matmul(product);
}

void integer_input_gradient(const IntegerConvolution& t) {
    const ConvolutionShape& l = t.layer;
    IntegerMatmul product = pixels_times_weights(t, l.batch * l.y.input * l.x.input, l.outputs, l.channels);
    if (product.m * product.n == 0) return;
    if (!is_pixelwise(l)) return slide(t, true);
    product.b_k = l.channels, product.b_column = 1;
    integer_matmul(product);
}

}  // namespace lograd
