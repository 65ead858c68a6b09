#include "sparse.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "kernels.h"
#include "parallel.h"
#include "sparse_lists.h"
#include "sparse_plan.h"

namespace lograd {
namespace {

const SparseKernels& sparse_kernels() {
#ifdef LOGRAD_X86_KERNELS
    if (&kernels() == &avx512_kernels()) return avx512_sparse_kernels();
    if (&kernels() == &avx2_kernels()) return avx2_sparse_kernels();
#endif
    return generic_sparse_kernels();
}

// Memory that grows and is kept: a fresh page costs more than what is written into it.
class Buffer {
    void* data_ = nullptr;
    std::size_t bytes_ = 0;

public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    template <class T> T* get(std::size_t count) {
        const std::size_t bytes = (count * sizeof(T) + 127) / 64 * 64;
        if (bytes > bytes_) {
            std::free(data_);
            bytes_ = 0;
            data_ = std::aligned_alloc(64, bytes);
            if (data_ == nullptr) throw std::bad_alloc();
            bytes_ = bytes;
        }
        return static_cast<T*>(data_);
    }
};

// What one thread needs; its size depends on the constants of the plan alone.
struct Worker {
    Buffer random, appended, slots, places, lengths, starts, where, offsets, sums, weight_sums, panel, order;
    bool failed = false;  // to find room for lists
};

struct Workspace {
    Buffer lists, weight, sums;
    std::vector<std::unique_ptr<Worker>> workers;
};

std::mutex kept_mutex;
std::unique_ptr<Workspace> kept;

// The workspace of the last call, or a new one if another call has it.
class Borrowed {
    std::unique_ptr<Workspace> workspace_;

public:
    Borrowed() {
        const std::lock_guard<std::mutex> lock(kept_mutex);
        workspace_ = kept ? std::move(kept) : std::make_unique<Workspace>();
    }
    ~Borrowed() {
        const std::lock_guard<std::mutex> lock(kept_mutex);
        kept = std::move(workspace_);
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Workspace* operator->() { return workspace_.get(); }
};

// Elements of G whose random numbers are drawn at a time, into the L1 cache.
constexpr std::size_t kPiece = 4096;
// Entries that are copied at once, and lists that are asked for ahead of their copy.
constexpr std::size_t kCopied = 4, kListsAhead = 4;
// Room for lists that is always there.
constexpr std::size_t kListBytes = 2 << 20;
// A thread is worth its start from so many elements of G on.
constexpr std::size_t kWorthAThread = 16384;

class Backward {
    const Plan plan_;
    const Convolution& layer_ = plan_.layer;
    const SparseBackward& task_;
    const SparseKernels& kernels_ = sparse_kernels();
    const int threads_;
    const bool with_x_ = task_.d_x != nullptr, with_w_ = task_.d_weight != nullptr, with_bias_ = task_.d_bias != nullptr;
    const bool prunes_ = task_.threshold != nullptr && *task_.threshold > 0.0f;
    const std::size_t pixels_ = layer_.y.output * layer_.x.output;  // of an image
    const std::size_t row_floats_ = layer_.x.kernel * plan_.tile;   // of a row of dW, as it is summed
    Borrowed work_;
    std::vector<Lists> pixel_lists_;   // by band and output block
    std::vector<Lists> output_lists_;  // by block and run
    // Lists take 16 bytes for each nonzero element.  In a quarter of the size of G there is room for one in sixteen of
    // its elements; with more of them the bands take turns, and at each turn dW is read and written.
    std::size_t capacity_ = std::min(
        plan_.bands.size() * most_bytes(),
        std::max({kListBytes, elements(layer_) * sizeof(float) / 4,
                  layer_.outputs * plan_.group_channels * layer_.y.kernel * layer_.x.kernel * sizeof(float)}));
    std::atomic<std::size_t> used_{0}, listed_{0};  // bytes, and strips of bands whose lists these are
    std::atomic<bool> full_{false};                  // a band had no room, so those behind it have to wait
    std::atomic<bool> finite_{true};
    using Tally = std::array<std::int64_t, 4>;
    std::vector<Tally> tallies_;  // by band and strip
    std::vector<char> failed_;    // by band and strip: its lists did not fit any more

public:
    Backward(const Convolution& layer, const SparseBackward& task, int threads)
        : plan_(layer, sparse_kernels().lanes), task_(task),
          threads_(std::max(1, std::min(threads, static_cast<int>(std::min<std::size_t>(
                                                     elements(layer) / kWorthAThread, 1024))))) {
        while (work_->workers.size() < static_cast<std::size_t>(threads_))
            work_->workers.push_back(std::make_unique<Worker>());
        tallies_.resize(plan_.bands.size() * plan_.strips.size());
        failed_.resize(tallies_.size());
        if (with_x_) pixel_lists_.resize(plan_.bands.size() * plan_.output_blocks.size());
        if (with_w_) output_lists_.resize(plan_.blocks.size() * plan_.runs.size());
    }

    bool run() {
        if (with_x_) pack_weight();
        if (!finite_) return false;
        if (with_x_ && plan_.zero_first) clear_input_gradient();
        if (with_bias_) work_->sums.get<float>(plan_.blocks.size() * layer_.outputs);
        // Lists of as many bands as memory allows, then their products: the sums do not depend on how many these are.
        for (std::size_t band = 0; band < plan_.bands.size();) {
            const std::size_t first = band;
            band = compress({first, plan_.bands.size()});
            if (band == first) {
                capacity_ = std::max(capacity_, most_bytes());
                band = compress({first, first + 1});
            }
            if (with_x_) input_products({first, band});
            if (with_w_) weight_products({plan_.band_blocks[first].begin, plan_.band_blocks[band - 1].end});
            if (!finite_) return false;
        }
        if (with_bias_) sum_bias();
        for (std::size_t k = 0; k < 4; ++k) {
            task_.counts[k] = 0;
            for (const Tally& tally : tallies_) task_.counts[k] += tally[k];
        }
        return true;
    }

private:
    static std::size_t elements(const Convolution& layer) {
        return layer.batch * layer.outputs * layer.y.output * layer.x.output;
    }

    // ------------------------------------------------------------------------------------------------------- the lists

    // What the lists of a band take at most.
    std::size_t most_bytes() const {
        std::size_t most = 0;
        for (std::size_t band = 0; band < plan_.bands.size(); ++band) {
            const std::size_t pixels = plan_.bands[band].pixels(), count = pixels * layer_.outputs * sizeof(Entry);
            std::size_t bytes = 0;
            if (with_x_) bytes += count + plan_.output_blocks.size() * (pixels * sizeof(List) + kPadding);
            const std::size_t of_block = layer_.outputs * sizeof(List) + plan_.runs.size() * kPadding;
            if (with_w_) bytes += count + plan_.band_blocks[band].size() * of_block;
            most = std::max(most, bytes);
        }
        return most;
    }
    static constexpr std::size_t kPadding = 64 + kCopied * sizeof(Entry);

    // Makes the lists of these bands; the first band whose lists did not fit, or the end.
    std::size_t compress(Span bands) {
        char* lists = work_->lists.get<char>(capacity_);
        const std::size_t strips = plan_.strips.size();
        used_ = listed_ = 0;
        full_ = false;
        std::fill(failed_.begin(), failed_.end(), 0);
        parallel_tasks(bands.size() * strips, threads_, [&](std::size_t worker, std::size_t task) {
            const std::size_t band = bands.begin + task / strips, strip = task % strips, place = band * strips + strip;
            Worker& own = *work_->workers[worker];
            // What is left of the band, if it is as large as what was listed, has to fit, or it would be made in vain.
            const std::size_t used = used_, expected = used / std::max<std::size_t>(listed_, 1) * (strips - strip);
            own.failed = band > bands.begin && (full_ || used + expected > capacity_);
            if (!own.failed) {
                if (layer_.gradient_last) compress_pixels(own, band, plan_.strips[strip], tallies_[place], lists);
                else compress_planes(own, band, plan_.strips[strip], tallies_[place], lists);
            }
            failed_[place] = own.failed;
            if (own.failed) full_ = true;
            else ++listed_;
        });
        const auto failure = std::find(failed_.begin(), failed_.end(), 1);
        return failure == failed_.end() ? bands.end : static_cast<std::size_t>(failure - failed_.begin()) / strips;
    }

    Tally tally_of(const Found& found) const {
        const auto zeros = static_cast<std::int64_t>(found.elements - found.nonzero);
        const auto before = static_cast<std::int64_t>(found.zeros_before);
        return {zeros, static_cast<std::int64_t>(found.nans), 0, prunes_ ? before : zeros};
    }

    // Elements of G from a place in memory on, counted, and what prunes them if they are to be.
    Row fetch(std::size_t start, std::size_t count, std::uint16_t* random, Found& found) const {
        Row row{task_.g + start, count, nullptr, 0, 0, 0.0f};
        if (prunes_) {
            row.seed = task_.key[0], row.index = task_.key[1] + start, row.threshold = *task_.threshold;
            row.random = kernels_.draw(row.seed, row.index, row.x, count, random);
        }
        kernels_.count(row.x, count, found);
        return row;
    }

    // Lists sorted by length; list i is at entries[starts[i]].
    Lists store(Worker& own, std::size_t count, const Entry* entries, const std::uint32_t* starts,
                const std::uint32_t* lengths, const std::uint32_t* where, char* memory) {
        std::size_t total = 0, longest = 0;
        for (std::size_t i = 0; i < count; ++i) {
            total += lengths[i];
            longest = std::max<std::size_t>(longest, lengths[i]);
        }
        auto* order = own.order.get<std::uint32_t>(count + longest + 2);
        auto* first = order + count;
        std::fill(first, first + longest + 2, 0u);
        for (std::size_t i = 0; i < count; ++i) ++first[lengths[i] + 1];
        const std::size_t empty = first[1];
        for (std::size_t n = 0; n <= longest; ++n) first[n + 1] += first[n];
        for (std::size_t i = 0; i < count; ++i) order[first[lengths[i]]++] = static_cast<std::uint32_t>(i);
        const std::size_t bytes = (count - empty) * sizeof(List) + (total + kCopied - 1) * sizeof(Entry);
        const std::size_t rounded = (bytes + 63) / 64 * 64, at = used_.fetch_add(rounded);
        if (at + rounded > capacity_) {
            own.failed = true;
            return {};
        }
        char* to = memory + at;
        auto* lists = reinterpret_cast<List*>(to);
        auto* out = reinterpret_cast<Entry*>(lists + (count - empty));
        const Lists result{lists, out, count - empty};
        for (std::size_t k = empty; k < count; ++k) {
            const std::size_t i = order[k], length = lengths[i];
            *lists++ = {where[i], static_cast<std::uint32_t>(length)};
            const Entry* from = entries + starts[i];
            // In this order lists lie where the hardware does not look ahead.
            const Entry* later = entries + starts[order[std::min(k + kListsAhead, count - 1)]];
            for (std::size_t j = 0; j < length; j += 64 / sizeof(Entry)) __builtin_prefetch(later + j);
            for (std::size_t j = 0; j < length; j += kCopied) std::memcpy(out + j, from + j, kCopied * sizeof(Entry));
            out += length;
        }
        return result;
    }

    // Places of a rectangle's pixels in the input that belongs to it, in floats.
    void pixel_places(const Rectangle& r, std::size_t scale, std::uint32_t* out) const {
        const std::size_t columns = plan_.columns_of(r), plane = plan_.rows_of(r) * columns;
        const std::size_t down = Plan::advance(layer_.y) * columns, right = Plan::advance(layer_.x);
        for (std::size_t i = 0; i < r.image.size(); ++i)
            for (std::size_t y = 0; y < r.y.size(); ++y)
                for (std::size_t x = 0; x < r.x.size(); ++x)
                    *out++ = static_cast<std::uint32_t>((i * plane + y * down + x * right) * plan_.tile * scale);
    }

    // Places of the rows of W in a panel, in bytes.
    const std::uint32_t* output_offsets(Worker& own) const {
        auto* out = own.offsets.get<std::uint32_t>(plan_.most_outputs + plan_.most_block_pixels);
        for (std::size_t o = 0; o < plan_.most_outputs; ++o)
            out[o] = static_cast<std::uint32_t>(o * plan_.panel_row * sizeof(float));
        return out;
    }

    // The rows of dW that belong to a run's output channels, in the sums of their set.
    void output_places(const Outputs& run, std::uint32_t* out) const {
        std::size_t start = 0;
        for (const Outputs& set : plan_.sets)
            if (set.channels.begin <= run.channels.begin) start = set.channels.begin;
        for (std::size_t o = run.channels.begin; o < run.channels.end; ++o)
            *out++ = static_cast<std::uint32_t>((o - start) * row_floats_);
    }

    Span channels_of(Span strip) const {
        return {plan_.runs[strip.begin].channels.begin, plan_.runs[strip.end - 1].channels.end};
    }

    // G with channels last: lists of a pixel lie in memory as they are made, those of an output channel are scattered.
    void compress_pixels(Worker& own, std::size_t band, Span strip, Tally& tally, char* memory) {
        const Span channels = channels_of(strip);
        const Span parts{plan_.runs[strip.begin].parts.begin, plan_.runs[strip.end - 1].parts.end};
        const std::size_t width = channels.size(), band_pixels = plan_.bands[band].pixels();
        const std::size_t pitch = plan_.most_block_pixels + 3;  // not a power of two: lists begin in different cache sets
        auto* appended = own.appended.get<Entry>(plan_.most_strip * plan_.most_band_pixels + kOverrun * (parts.size() + 1));
        auto* slots = own.slots.get<Entry>(with_w_ ? width * pitch + kCopied : 0);
        auto* places = own.places.get<std::uint16_t>(plan_.most_outputs + kOverrun);
        // By part and pixel, then by output channel.
        auto* lengths = own.lengths.get<std::uint32_t>(parts.size() * band_pixels + width);
        auto* starts = own.starts.get<std::uint32_t>(parts.size() * band_pixels + width);
        auto *output_lengths = lengths + parts.size() * band_pixels, *output_starts = starts + parts.size() * band_pixels;
        auto* where = own.where.get<std::uint32_t>(band_pixels + plan_.most_block_pixels + plan_.most_run);
        auto *block_offsets = where + band_pixels, *rows = block_offsets + plan_.most_block_pixels;
        auto* random = own.random.get<std::uint16_t>(std::max(kPiece, width) + kDrawnBesides);
        auto* sums = own.sums.get<float>(width);
        const std::uint32_t* offsets = output_offsets(own);
        for (std::size_t o = 0; o < width; ++o) output_starts[o] = static_cast<std::uint32_t>(o * pitch);
        // Where the lists of a part begin, and where its next one does.
        std::vector<std::size_t> begin(parts.size()), next(parts.size());
        for (std::size_t k = 0; k < parts.size(); ++k)
            begin[k] = next[k] =
                (plan_.output_blocks[parts.begin + k].channels.begin - channels.begin) * band_pixels + k * kOverrun;

        Found total;
        std::size_t pixel = 0;
        // Whole pixels in a row are pruned together.
        const std::size_t together = width == layer_.outputs ? std::max<std::size_t>(kPiece / width, 1) : 1;
        for (std::size_t b = plan_.band_blocks[band].begin; b < plan_.band_blocks[band].end; ++b) {
            const Rectangle& block = plan_.blocks[b];
            if (with_w_) std::fill(output_lengths, output_lengths + width, 0u);
            if (with_bias_) std::fill(sums, sums + width, 0.0f);
            pixel_places(block, sizeof(float), block_offsets);
            const bool whole_rows = block.x.size() == layer_.x.output;
            const std::size_t in_a_row = whole_rows ? block.y.size() * block.x.size() : block.x.size();
            std::size_t in_block = 0;
            for (std::size_t image = block.image.begin; image < block.image.end; ++image)
                for (std::size_t done = 0; done < block.y.size() * block.x.size();) {
                    const std::size_t y = block.y.begin + done / block.x.size(), x = block.x.begin + done % block.x.size();
                    const std::size_t count = std::min(together, in_a_row - done % in_a_row);
                    const std::size_t start = (image * pixels_ + y * layer_.x.output + x) * layer_.outputs + channels.begin;
                    // The next pixel's part of the strip lies far off, where the hardware does not look ahead.
                    if (together == 1)
                        for (std::size_t o = 0; o < width; o += 16) __builtin_prefetch(task_.g + start + layer_.outputs + o);
                    const Row fetched = fetch(start, count * width, random, total);
                    for (std::size_t k = 0; k < count; ++k, ++pixel, ++in_block) {
                        for (std::size_t part = 0; part < parts.size(); ++part) {
                            const Span& of = plan_.output_blocks[parts.begin + part].channels;
                            const std::size_t first = of.begin - channels.begin;
                            Entry* out = appended + next[part];
                            const Row row = fetched.part(k * width + first, of.size());
                            const std::size_t found = kernels_.compress(row, offsets, out, places);
                            total.nonzero += found;
                            if (with_bias_)
                                for (std::size_t e = 0; e < found; ++e) sums[first + places[e]] += out[e].value;
                            if (with_w_)
                                kernels_.scatter(out, places, found, block_offsets[in_block], slots + first * pitch, pitch,
                                                 output_lengths + first);
                            if (!with_x_) continue;
                            lengths[part * band_pixels + pixel] = static_cast<std::uint32_t>(found);
                            starts[part * band_pixels + pixel] = static_cast<std::uint32_t>(next[part] - begin[part]);
                            next[part] += found;
                        }
                    }
                    done += count;
                }
            if (with_w_)
                for (std::size_t run = strip.begin; run < strip.end; ++run) {
                    const Span& of = plan_.runs[run].channels;
                    const std::size_t first = of.begin - channels.begin;
                    output_places(plan_.runs[run], rows);
                    output_lists_[b * plan_.runs.size() + run] =
                        store(own, of.size(), slots, output_starts + first, output_lengths + first, rows, memory);
                }
            if (with_bias_)
                std::memcpy(work_->sums.get<float>(0) + b * layer_.outputs + channels.begin, sums, width * sizeof(float));
        }
        tally = tally_of(total);
        if (!with_x_) return;
        pixel_places(plan_.bands[band], 1, where);
        for (std::size_t part = 0; part < parts.size(); ++part)
            pixel_lists_[band * plan_.output_blocks.size() + parts.begin + part] =
                store(own, band_pixels, appended + begin[part], starts + part * band_pixels, lengths + part * band_pixels,
                      where, memory);
    }

    // G with channels first: lists of an output channel lie in memory as they are made, those of a pixel are scattered.
    void compress_planes(Worker& own, std::size_t band, Span strip, Tally& tally, char* memory) {
        const Span blocks = plan_.band_blocks[band];
        const std::size_t band_pixels = plan_.bands[band].pixels();
        const std::size_t pitch = plan_.most_outputs + 3;
        auto* appended = own.appended.get<Entry>(plan_.most_run * band_pixels + kOverrun * (blocks.size() + 1));
        auto* slots = own.slots.get<Entry>(with_x_ ? band_pixels * pitch + kCopied : 0);
        auto* places = own.places.get<std::uint16_t>(plan_.most_block_pixels + kOverrun);
        // By block and output channel, then by pixel.
        auto* lengths = own.lengths.get<std::uint32_t>(blocks.size() * plan_.most_run + band_pixels);
        auto* starts = own.starts.get<std::uint32_t>(blocks.size() * plan_.most_run + band_pixels);
        auto* pixel_lengths = lengths + blocks.size() * plan_.most_run;
        auto* pixel_starts = starts + blocks.size() * plan_.most_run;
        auto* where = own.where.get<std::uint32_t>(2 * band_pixels + plan_.most_run);
        auto *block_offsets = where + band_pixels, *rows = block_offsets + band_pixels;
        auto* random = own.random.get<std::uint16_t>(std::max(kPiece, plan_.most_block_pixels) +
                                                     plan_.most_block_images * kDrawnBesides);
        const std::uint32_t* offsets = output_offsets(own);
        pixel_places(plan_.bands[band], 1, where);
        for (std::size_t p = 0; p < band_pixels; ++p) pixel_starts[p] = static_cast<std::uint32_t>(p * pitch);
        std::vector<std::size_t> begin(blocks.size()), next(blocks.size()), first_pixel(blocks.size());
        std::vector<Row> planes;
        for (std::size_t k = 0, pixel = 0; k < blocks.size(); ++k) {
            first_pixel[k] = pixel;
            pixel_places(plan_.blocks[blocks.begin + k], sizeof(float), block_offsets + pixel);
            pixel += plan_.blocks[blocks.begin + k].pixels();
        }

        Found total;
        for (std::size_t run = strip.begin; run < strip.end; ++run) {
            const Outputs& of_run = plan_.runs[run];
            for (std::size_t k = 0; k < blocks.size(); ++k)
                begin[k] = next[k] = first_pixel[k] * of_run.channels.size() + k * kOverrun;
            for (std::size_t part = of_run.parts.begin; part < of_run.parts.end; ++part) {
                const Span& of = plan_.output_blocks[part].channels;
                if (with_x_) std::fill(pixel_lengths, pixel_lengths + band_pixels, 0u);
                for (std::size_t k = 0; k < blocks.size(); ++k) {
                    const Rectangle& block = plan_.blocks[blocks.begin + k];
                    const std::size_t plane = block.y.size() * block.x.size(), images = block.image.size();
                    // Whole planes in a row are pruned together.
                    const std::size_t together = plane == pixels_ ? std::max<std::size_t>(kPiece / (plane * images), 1) : 1;
                    for (std::size_t o = of.begin; o < of.end; o += together) {
                        const std::size_t count = std::min(together, of.end - o);
                        planes.clear();
                        for (std::size_t i = 0; i < images; ++i) {
                            const std::size_t start = ((block.image.begin + i) * layer_.outputs + o) * pixels_ +
                                                      block.y.begin * layer_.x.output + block.x.begin;
                            planes.push_back(fetch(start, count * plane, random + i * (count * plane + kDrawnBesides), total));
                        }
                        for (std::size_t j = 0; j < count; ++j) {
                            const std::size_t place = k * plan_.most_run + (o + j - of_run.channels.begin), start = next[k];
                            float sum = 0.0f;
                            for (std::size_t i = 0; i < images; ++i) {
                                const std::size_t pixel = first_pixel[k] + i * plane;
                                const Row row = planes[i].part(j * plane, plane);
                                Entry* out = appended + next[k];
                                const std::size_t found = kernels_.compress(row, block_offsets + pixel, out, places);
                                total.nonzero += found;
                                if (with_bias_)
                                    for (std::size_t e = 0; e < found; ++e) sum += out[e].value;
                                if (with_x_)
                                    kernels_.scatter(out, places, found, offsets[o + j - of.begin], slots + pixel * pitch,
                                                     pitch, pixel_lengths + pixel);
                                if (with_w_) next[k] += found;
                            }
                            lengths[place] = static_cast<std::uint32_t>(next[k] - start);
                            starts[place] = static_cast<std::uint32_t>(start - begin[k]);
                            if (with_bias_) work_->sums.get<float>(0)[(blocks.begin + k) * layer_.outputs + o + j] = sum;
                        }
                    }
                }
                if (with_x_)
                    pixel_lists_[band * plan_.output_blocks.size() + part] =
                        store(own, band_pixels, slots, pixel_starts, pixel_lengths, where, memory);
            }
            if (!with_w_) continue;
            output_places(of_run, rows);
            for (std::size_t k = 0; k < blocks.size(); ++k)
                output_lists_[(blocks.begin + k) * plan_.runs.size() + run] =
                    store(own, of_run.channels.size(), appended + begin[k], starts + k * plan_.most_run,
                          lengths + k * plan_.most_run, rows, memory);
        }
        tally = tally_of(total);
    }

    // -------------------------------------------------------------------------------------------------------------- dX

    Span channels_of_tile(std::size_t tile) const {
        const std::size_t begin = tile * plan_.tile;
        return {begin, std::min(begin + plan_.tile, plan_.group_channels)};
    }

    // Panels by tile, output block, kernel row and taps.
    std::size_t panels_of_block() const { return layer_.y.kernel * plan_.taps.size(); }
    std::size_t panel_at(std::size_t tile, std::size_t block) const {
        return (tile * layer_.outputs + plan_.output_blocks[block].channels.begin) * panels_of_block() * plan_.panel_row;
    }

    void pack_weight() {
        float* packed = work_->weight.get<float>(plan_.tiles * layer_.outputs * panels_of_block() * plan_.panel_row);
        const WeightStrides& s = task_.strides;
        parallel_tasks(plan_.output_blocks.size() * plan_.tiles, threads_, [&](std::size_t, std::size_t task) {
            const std::size_t tile = task / plan_.output_blocks.size(), block = task % plan_.output_blocks.size();
            const Span outputs = plan_.output_blocks[block].channels, channels = channels_of_tile(tile);
            float* panel = packed + panel_at(tile, block);
            bool bad = false;
            for (std::size_t y = 0; y < layer_.y.kernel; ++y)
                for (const Span& taps : plan_.taps) {
                    const float* from = task_.weight + outputs.begin * s.output + channels.begin * s.channel + y * s.y +
                                        taps.begin * s.x;
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

    void clear_input_gradient() {
        const std::size_t image = layer_.channels * layer_.y.input * layer_.x.input;
        parallel_tasks(layer_.batch, threads_, [&](std::size_t, std::size_t i) {
            std::memset(task_.d_x + i * image, 0, image * sizeof(float));
        });
    }

    // Calls go(place, columns, inside, data, pixels, y) for each of these rows of the input that belongs to a rectangle:
    // its place in the tile, in floats; its columns, and those inside the input, at `data`; its row in the input.  A row
    // outside the input has no data.
    template <class T, class Go>
    void over_lines(const Rectangle& r, Span rows, std::size_t tile, std::size_t group, T* data, Go go) const {
        const std::size_t columns = plan_.columns_of(r), plane = layer_.y.input * layer_.x.input;
        const Span channels = channels_of_tile(tile);
        const std::size_t channel = group * plan_.group_channels + channels.begin;
        const std::size_t step_y = Plan::step(layer_.y), step_x = Plan::step(layer_.x);
        const auto left = static_cast<std::ptrdiff_t>(r.x.begin * layer_.x.stride) -
                          static_cast<std::ptrdiff_t>(layer_.x.padding);
        const auto width = static_cast<std::ptrdiff_t>(layer_.x.input), step = static_cast<std::ptrdiff_t>(step_x);
        const std::size_t before = left >= 0 ? 0 : static_cast<std::size_t>((-left + step - 1) / step);
        const std::size_t after = left >= width ? 0 : static_cast<std::size_t>((width - left + step - 1) / step);
        const Span inside{std::min(before, columns), std::max(std::min(after, columns), std::min(before, columns))};
        Pixels pixels{inside.size(), step_x, channels.size(), layer_.input_last ? layer_.channels : 1,
                      layer_.input_last ? 1 : plane};
        for (std::size_t i = r.image.begin; i < r.image.end; ++i)
            for (std::size_t row = rows.begin; row < rows.end; ++row) {
                const auto y = static_cast<std::ptrdiff_t>(r.y.begin * layer_.y.stride + row * step_y) -
                               static_cast<std::ptrdiff_t>(layer_.y.padding);
                const std::size_t number = (i - r.image.begin) * plan_.rows_of(r) + (row - rows.begin);
                const std::size_t line = number * columns * plan_.tile;
                const bool exists = y >= 0 && y < static_cast<std::ptrdiff_t>(layer_.y.input) && inside.size() > 0;
                if (!exists) {
                    go(line, columns, Span{0, 0}, static_cast<T*>(nullptr), pixels, y);
                    continue;
                }
                const std::size_t x = static_cast<std::size_t>(left + static_cast<std::ptrdiff_t>(inside.begin * step_x));
                const std::size_t pixel = static_cast<std::size_t>(y) * layer_.x.input + x;
                T* at = data + (layer_.input_last ? (i * plane + pixel) * layer_.channels + channel
                                                  : (i * layer_.channels + channel) * plane + pixel);
                go(line, columns, inside, at, pixels, y);
            }
    }

    void input_products(Span bands) {
        std::vector<Span> chains;
        for (const Span& chain : plan_.chains) {
            const Span here{std::max(chain.begin, bands.begin), std::min(chain.end, bands.end)};
            if (here.begin < here.end) chains.push_back(here);
        }
        const std::size_t tiles = plan_.tiles * layer_.groups;
        parallel_tasks(chains.size() * tiles, threads_, [&](std::size_t worker, std::size_t task) {
            const Span chain = chains[task / tiles];
            for (std::size_t band = chain.begin; band < chain.end; ++band)
                input_product(*work_->workers[worker], band, task % tiles / plan_.tiles, task % plan_.tiles);
        });
    }

    void input_product(Worker& own, std::size_t band, std::size_t group, std::size_t tile) {
        const Rectangle& r = plan_.bands[band];
        const std::size_t columns = plan_.columns_of(r), size = plan_.area_of(r) * plan_.tile;
        auto* sums = own.panel.get<float>(plan_.most_band_area * plan_.tile);
        std::memset(sums, 0, size * sizeof(float));
        for (std::size_t block = 0; block < plan_.output_blocks.size(); ++block) {
            const Outputs& outputs = plan_.output_blocks[block];
            if (outputs.group != group) continue;
            const Lists& lists = pixel_lists_[band * plan_.output_blocks.size() + block];
            const float* panel = work_->weight.get<float>(0) + panel_at(tile, block);
            for (std::size_t y = 0; y < layer_.y.kernel; ++y)
                for (const Span& taps : plan_.taps) {
                    float* to = sums + (y * layer_.y.dilation * columns + taps.begin * layer_.x.dilation) * plan_.tile;
                    // Lists visit the panel in no order that the hardware could foresee.
                    const std::size_t floats = outputs.channels.size() * plan_.panel_row;
                    for (std::size_t i = 0; i < floats; i += 16) __builtin_prefetch(panel + i);
                    kernels_.multiply[taps.size() * plan_.tile_vectors](lists, reinterpret_cast<const char*>(panel), to);
                    panel += floats;
                }
        }
        // Rows that the band before has written, if it belongs to the same image.
        std::ptrdiff_t written = 0;
        if (plan_.overlap && band > 0 && plan_.bands[band - 1].image.begin == r.image.begin) {
            const Rectangle& before = plan_.bands[band - 1];
            const std::size_t end = before.y.begin * layer_.y.stride + plan_.rows_of(before) * Plan::step(layer_.y);
            written = static_cast<std::ptrdiff_t>(end) - static_cast<std::ptrdiff_t>(layer_.y.padding);
        }
        over_lines(r, {0, plan_.rows_of(r)}, tile, group, task_.d_x,
                   [&](std::size_t line, std::size_t, Span inside, float* data, const Pixels& pixels, std::ptrdiff_t y) {
                       if (data == nullptr) return;
                       kernels_.unpack(sums + line + inside.begin * plan_.tile, plan_.tile, pixels,
                                       plan_.zero_first || y < written, data);
                   });
    }

    // -------------------------------------------------------------------------------------------------------------- dW

    void weight_products(Span blocks) {
        std::size_t rows = plan_.kernel_rows;
        const std::size_t tiles = plan_.tiles * plan_.sets.size();
        while (rows > 1 && tiles * ((layer_.y.kernel + rows - 1) / rows) < static_cast<std::size_t>(threads_)) --rows;
        const std::size_t passes = (layer_.y.kernel + rows - 1) / rows;
        parallel_tasks(tiles * passes, threads_, [&](std::size_t worker, std::size_t task) {
            const std::size_t first = task % passes * rows, tile = task / passes % plan_.tiles;
            const std::size_t set = task / passes / plan_.tiles;
            weight_product(*work_->workers[worker], blocks, set, tile, {first, std::min(first + rows, layer_.y.kernel)});
        });
    }

    // Sums go on from what the blocks before have left in dW, so that its bits do not depend on who took turns.
    void weight_product(Worker& own, Span blocks, std::size_t set, std::size_t tile, Span kernel) {
        auto* panel = own.panel.get<float>(plan_.most_block_area * plan_.tile);
        const Outputs& outputs = plan_.sets[set];
        const std::size_t plane = outputs.channels.size() * row_floats_, size = kernel.size() * plane;
        auto* sums = own.weight_sums.get<float>(size);
        if (blocks.begin == 0) std::memset(sums, 0, size * sizeof(float));
        else
            over_weights(outputs.channels, tile, kernel, sums, [&](float* part, float* d_weight, const Pixels& rows) {
                kernels_.pack(d_weight, rows, plan_.tile, part);
            });
        for (std::size_t b = blocks.begin; b < blocks.end; ++b) {
            const Rectangle& r = plan_.blocks[b];
            const std::size_t columns = plan_.columns_of(r);
            // Of the rows of the input only those that these rows of the kernel see.
            const std::size_t seen = plan_.rows_of(r) - (layer_.y.kernel - kernel.size()) * layer_.y.dilation;
            const std::size_t first = kernel.begin * layer_.y.dilation;
            bool bad = false;
            over_lines(r, {first, first + seen}, tile, outputs.group, task_.x,
                       [&](std::size_t line, std::size_t count, Span inside, const float* data, const Pixels& pixels,
                           std::ptrdiff_t) {
                           float* to = panel + line;
                           std::memset(to, 0, inside.begin * plan_.tile * sizeof(float));
                           if (data != nullptr)
                               bad |= kernels_.pack(data, pixels, plan_.tile, to + inside.begin * plan_.tile);
                           std::memset(to + inside.end * plan_.tile, 0, (count - inside.end) * plan_.tile * sizeof(float));
                       });
            if (bad) finite_ = false;
            for (std::size_t y = 0; y < kernel.size(); ++y)
                for (std::size_t run = outputs.parts.begin; run < outputs.parts.end; ++run)
                    for (const Span& taps : plan_.taps) {
                        const std::size_t down = y * layer_.y.dilation * columns;
                        const float* from = panel + (down + taps.begin * layer_.x.dilation) * plan_.tile;
                        kernels_.multiply[taps.size() * plan_.tile_vectors](
                            output_lists_[b * plan_.runs.size() + run], reinterpret_cast<const char*>(from),
                            sums + y * plane + taps.begin * plan_.tile);
                    }
        }
        over_weights(outputs.channels, tile, kernel, sums, [&](float* part, float* d_weight, const Pixels& rows) {
            kernels_.unpack(part, plan_.tile, rows, false, d_weight);
        });
    }

    // Calls go(rows, place in dW, shape) for the rows of sums of these output channels and of these rows of the kernel.
    template <class Go>
    void over_weights(Span outputs, std::size_t tile, Span kernel, float* sums, Go go) const {
        const WeightStrides& s = task_.strides;
        const Span channels = channels_of_tile(tile);
        const bool one = layer_.x.kernel == 1;  // then the rows of all output channels are as far from each other
        for (std::size_t y = kernel.begin; y < kernel.end; ++y)
            for (std::size_t o = outputs.begin; o < outputs.end; o = one ? outputs.end : o + 1) {
                float* at = task_.d_weight + o * s.output + channels.begin * s.channel + y * s.y;
                const Pixels rows{one ? outputs.size() : layer_.x.kernel, 1, channels.size(), one ? s.output : s.x, s.channel};
                go(sums, at, rows);
                sums += (one ? outputs.size() : 1) * row_floats_;
            }
    }

    void sum_bias() {
        const float* sums = work_->sums.get<float>(0);
        for (std::size_t o = 0; o < layer_.outputs; ++o) {
            double sum = 0.0;
            for (std::size_t b = 0; b < plan_.blocks.size(); ++b) sum += sums[b * layer_.outputs + o];
            task_.d_bias[o] = static_cast<float>(sum);
        }
    }
};

}  // namespace

bool sparse_backward(const Convolution& layer, const SparseBackward& task, int threads) {
    return Backward(layer, task, threads).run();
}

void release_sparse_workspace() {
    const std::lock_guard<std::mutex> lock(kept_mutex);
    kept.reset();
}

}  // namespace lograd
