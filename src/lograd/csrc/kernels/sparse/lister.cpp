#include "kernels/sparse/lister.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"

namespace lograd {
namespace {

// Elements of G whose random numbers are drawn at a time, into the L1 cache.
constexpr std::size_t kPiece = 4096;
// Room for lists that is always there.
constexpr std::size_t kListBytes = 2 << 20;

Row part_of(const Row& row, std::size_t begin, std::size_t size) {
    return {row.x + begin,     size,     row.random == nullptr ? nullptr : row.random + begin,
            row.index + begin, row.seed, row.threshold};
}

}  // namespace

Lister::Lister(const Plan& plan, const SparseBackward& task, const SparseKernels& kernels, Workspace& work, int threads)
    : plan_(plan), task_(task), kernels_(kernels), work_(work), threads_(threads) {
    // Lists take 16 bytes for each nonzero element.  In a quarter of the size of G there is room for one in sixteen of its
    // elements; with more of them the bands take turns, and at each turn dW is read and written.
    const std::size_t elements = layer_.batch * layer_.outputs * pixels_;
    const std::size_t weights = layer_.outputs * plan_.group_channels * layer_.y.kernel * layer_.x.kernel;
    capacity_ = std::min(plan_.bands.size() * most_bytes(),
                         std::max({kListBytes, elements * sizeof(float) / 4, weights * sizeof(float)}));
    tallies_.resize(plan_.bands.size() * plan_.strips.size());
    failed_.resize(tallies_.size());
    if (with_x_) pixel_lists_.resize(plan_.bands.size() * plan_.output_blocks.size());
    if (with_w_) output_lists_.resize(plan_.blocks.size() * plan_.runs.size());
    if (with_bias_) sums_ = work_.sums.get<float>(plan_.blocks.size() * layer_.outputs);
}

std::size_t Lister::list(std::size_t band) {
    const std::size_t end = list_bands({band, plan_.bands.size()});
    if (end != band) return end;
    capacity_ = std::max(capacity_, most_bytes());
    return list_bands({band, band + 1});
}

void Lister::finish() const {
    for (std::size_t k = 0; k < 4; ++k) {
        task_.counts[k] = 0;
        for (const Tally& tally : tallies_) task_.counts[k] += tally[k];
    }
    if (!with_bias_) return;
    for (std::size_t o = 0; o < layer_.outputs; ++o) {
        double sum = 0.0;
        for (std::size_t b = 0; b < plan_.blocks.size(); ++b) sum += sums_[b * layer_.outputs + o];
        task_.d_bias[o] = static_cast<float>(sum);
    }
}

// What the lists of a band take at most.
std::size_t Lister::most_bytes() const {
    std::size_t most = 0;
    for (std::size_t band = 0; band < plan_.bands.size(); ++band) {
        const std::size_t pixels = plan_.bands[band].pixels(), count = pixels * layer_.outputs * sizeof(Entry);
        std::size_t bytes = 0;
        if (with_x_) bytes += count + plan_.output_blocks.size() * (pixels * sizeof(List) + kListPadding);
        const std::size_t of_block = layer_.outputs * sizeof(List) + plan_.runs.size() * kListPadding;
        if (with_w_) bytes += count + plan_.band_blocks[band].size() * of_block;
        most = std::max(most, bytes);
    }
    return most;
}

// Makes the lists of these bands; the first band whose lists did not fit, or the end.
std::size_t Lister::list_bands(Span bands) {
    memory_.reset(work_.lists.get<char>(capacity_), capacity_);
    const std::size_t strips = plan_.strips.size();
    listed_ = 0;
    full_ = false;
    std::fill(failed_.begin(), failed_.end(), 0);
    parallel_tasks(bands.size() * strips, threads_, [&](std::size_t worker, std::size_t task) {
        const std::size_t band = bands.begin + task / strips, strip = task % strips, place = band * strips + strip;
        Worker& own = *work_.workers[worker];
        // What is left of the band, if it is as large as what was listed, has to fit, or it would be made in vain.
        const std::size_t used = memory_.used();
        const std::size_t expected = used / std::max<std::size_t>(listed_, 1) * (strips - strip);
        own.failed = band > bands.begin && (full_ || used + expected > capacity_);
        if (!own.failed) list_strip(own, band, plan_.strips[strip], tallies_[place]);
        failed_[place] = own.failed;
        if (own.failed) full_ = true;
        else ++listed_;
    });
    const auto failure = std::find(failed_.begin(), failed_.end(), 1);
    return failure == failed_.end() ? bands.end : static_cast<std::size_t>(failure - failed_.begin()) / strips;
}

void Lister::list_strip(Worker& own, std::size_t number, Span strip, Tally& tally) {
    const Band band = band_of(own, number);
    const Found found = layer_.gradient_last ? list_pixels(own, band, strip) : list_planes(own, band, strip);
    const auto zeros = static_cast<std::int64_t>(found.elements - found.nonzero);
    const auto before = static_cast<std::int64_t>(found.zeros_before);
    tally = {zeros, static_cast<std::int64_t>(found.nans), 0, prunes_ ? before : zeros};
}

Lister::Band Lister::band_of(Worker& own, std::size_t number) const {
    const std::size_t most_pixels = plan_.most_band_pixels;
    Band band{number, plan_.bands[number].pixels(), plan_.band_blocks[number], {}, nullptr, nullptr, nullptr, nullptr};
    band.where = own.where.get<std::uint32_t>(2 * most_pixels + plan_.most_run);
    band.offsets = band.where + most_pixels;
    band.rows = band.offsets + most_pixels;
    pixel_places(plan_.bands[number], 1, band.where);
    std::size_t pixel = 0;
    for (std::size_t b = band.blocks.begin; b < band.blocks.end; ++b) {
        band.first_pixel.push_back(pixel);
        pixel_places(plan_.blocks[b], sizeof(float), band.offsets + pixel);
        pixel += plan_.blocks[b].pixels();
    }
    auto* rows = own.offsets.get<std::uint32_t>(plan_.most_outputs + kOverrun);
    for (std::size_t o = 0; o < plan_.most_outputs; ++o)
        rows[o] = static_cast<std::uint32_t>(o * plan_.panel_row * sizeof(float));
    band.output_offsets = rows;
    return band;
}

// Elements of G from a place in memory on, counted, and what prunes them if they are to be.
Row Lister::fetch(std::size_t start, std::size_t count, std::uint16_t* random, Found& found) const {
    Row row{task_.g + start, count, nullptr, 0, 0, 0.0f};
    if (prunes_) {
        row.seed = task_.key.seed, row.index = task_.key.offset + start, row.threshold = *task_.threshold;
        row.random = kernels_.draw(row.seed, row.index, row.x, count, random);
    }
    kernels_.count(row.x, count, found);
    return row;
}

// Places of a rectangle's pixels in the input that belongs to it, in floats.
void Lister::pixel_places(const Rectangle& r, std::size_t scale, std::uint32_t* out) const {
    const std::size_t columns = plan_.columns_of(r), plane = plan_.rows_of(r) * columns;
    const std::size_t down = Plan::advance(layer_.y) * columns, right = Plan::advance(layer_.x);
    for (std::size_t i = 0; i < r.image.size(); ++i)
        for (std::size_t y = 0; y < r.y.size(); ++y)
            for (std::size_t x = 0; x < r.x.size(); ++x)
                *out++ = static_cast<std::uint32_t>((i * plane + y * down + x * right) * plan_.tile * scale);
}

// The rows of dW that belong to a run's output channels, in the sums of their set.
void Lister::output_places(const Outputs& run, std::uint32_t* out) const {
    std::size_t start = 0;
    for (const Outputs& set : plan_.sets)
        if (set.channels.begin <= run.channels.begin) start = set.channels.begin;
    for (std::size_t o = run.channels.begin; o < run.channels.end; ++o)
        *out++ = static_cast<std::uint32_t>((o - start) * plan_.weight_row());
}

// ---------------------------------------------------------------------------------------- channels last: lines are pixels

Found Lister::list_pixels(Worker& own, const Band& band, Span strip) {
    const Span channels{plan_.runs[strip.begin].channels.begin, plan_.runs[strip.end - 1].channels.end};
    const Span parts{plan_.runs[strip.begin].parts.begin, plan_.runs[strip.end - 1].parts.end};
    std::vector<std::size_t> segments;
    for (std::size_t part = parts.begin; part < parts.end; ++part)
        segments.push_back(plan_.output_blocks[part].channels.begin - channels.begin);
    TwoWayLists lists(own, kernels_,
                      {band.pixels, plan_.most_block_pixels + 3, std::move(segments), channels.size(),
                       plan_.most_outputs, with_x_, with_w_});
    auto* random = own.random.get<std::uint16_t>(std::max(kPiece, channels.size()) + kDrawnBesides);
    auto* sums = own.sums.get<float>(channels.size());
    Found total;
    lists.restart(band.pixels);
    for (std::size_t b = band.blocks.begin; b < band.blocks.end; ++b) {
        lists.clear_across();
        std::fill(sums, sums + channels.size(), 0.0f);
        list_block(band, b, parts, channels, random, sums, lists, total);
        for (std::size_t run = strip.begin; with_w_ && run < strip.end; ++run) {
            const Span& of = plan_.runs[run].channels;
            output_places(plan_.runs[run], band.rows);
            output_lists_[b * plan_.runs.size() + run] =
                lists.store_across(memory_, of.begin - channels.begin, of.size(), band.rows);
        }
        if (with_bias_) std::memcpy(sums_ + b * layer_.outputs + channels.begin, sums, channels.size() * sizeof(float));
    }
    for (std::size_t part = parts.begin; with_x_ && part < parts.end; ++part)
        pixel_lists_[band.number * plan_.output_blocks.size() + part] =
            lists.store_along(memory_, part - parts.begin, band.pixels, band.where);
    return total;
}

void Lister::list_block(const Band& band, std::size_t b, Span parts, Span channels, std::uint16_t* random, float* sums,
                        TwoWayLists& lists, Found& total) {
    const Rectangle& block = plan_.blocks[b];
    const std::size_t width = channels.size(), plane = block.y.size() * block.x.size();
    // Whole pixels in a row are pruned together.
    const std::size_t together = width == layer_.outputs ? std::max<std::size_t>(kPiece / width, 1) : 1;
    const std::size_t in_a_row = block.x.size() == layer_.x.output ? plane : block.x.size();
    std::size_t pixel = band.first_pixel[b - band.blocks.begin];
    const auto list_pixel = [&](const Row& line) {
        for (std::size_t part = 0; part < parts.size(); ++part) {
            const Span& of = plan_.output_blocks[parts.begin + part].channels;
            const std::size_t first = of.begin - channels.begin, begin = lists.begin_line(part);
            const std::size_t found =
                lists.add(part_of(line, first, of.size()), part, first, band.output_offsets, band.offsets[pixel]);
            lists.end_line(part, pixel, begin);
            total.nonzero += found;
            if (with_bias_)
                for (std::size_t e = 0; e < found; ++e) sums[first + lists.places()[e]] += lists.entries()[e].value;
        }
        ++pixel;
    };
    for (std::size_t image = block.image.begin; image < block.image.end; ++image)
        for (std::size_t done = 0, count; done < plane; done += count) {
            const std::size_t y = block.y.begin + done / block.x.size(), x = block.x.begin + done % block.x.size();
            const std::size_t start = (image * pixels_ + y * layer_.x.output + x) * layer_.outputs + channels.begin;
            count = std::min(together, in_a_row - done % in_a_row);
            // The next pixel's part of the strip lies far off, where the hardware does not look ahead.
            if (together == 1)
                for (std::size_t o = 0; o < width; o += 16) __builtin_prefetch(task_.g + start + layer_.outputs + o);
            const Row fetched = fetch(start, count * width, random, total);
            for (std::size_t k = 0; k < count; ++k) list_pixel(part_of(fetched, k * width, width));
        }
}

// --------------------------------------------------------------------------------------- channels first: lines are planes

Found Lister::list_planes(Worker& own, const Band& band, Span strip) {
    TwoWayLists lists(own, kernels_,
                      {plan_.most_run, plan_.most_outputs + 3, band.first_pixel, band.pixels, plan_.most_block_pixels,
                       with_w_, with_x_});
    auto* random = own.random.get<std::uint16_t>(std::max(kPiece, plan_.most_block_pixels) +
                                                 plan_.most_block_images * kDrawnBesides);
    Found total;
    for (std::size_t run = strip.begin; run < strip.end; ++run) {
        const Outputs& of_run = plan_.runs[run];
        lists.restart(of_run.channels.size());
        for (std::size_t part = of_run.parts.begin; part < of_run.parts.end; ++part) {
            lists.clear_across();
            for (std::size_t b = band.blocks.begin; b < band.blocks.end; ++b)
                list_part(band, b, of_run, plan_.output_blocks[part].channels, random, lists, total);
            if (with_x_)
                pixel_lists_[band.number * plan_.output_blocks.size() + part] =
                    lists.store_across(memory_, 0, band.pixels, band.where);
        }
        if (!with_w_) continue;
        output_places(of_run, band.rows);
        for (std::size_t b = band.blocks.begin; b < band.blocks.end; ++b)
            output_lists_[b * plan_.runs.size() + run] =
                lists.store_along(memory_, b - band.blocks.begin, of_run.channels.size(), band.rows);
    }
    return total;
}

void Lister::list_part(const Band& band, std::size_t b, const Outputs& run, Span outputs, std::uint16_t* random,
                       TwoWayLists& lists, Found& total) {
    const Rectangle& block = plan_.blocks[b];
    const std::size_t segment = b - band.blocks.begin, first_pixel = band.first_pixel[segment];
    const std::size_t plane = block.y.size() * block.x.size(), images = block.image.size();
    // Whole planes in a row are pruned together.
    const std::size_t together = plane == pixels_ ? std::max<std::size_t>(kPiece / (plane * images), 1) : 1;
    std::vector<Row> planes(images);
    const auto list_output = [&](std::size_t o, std::size_t at) {
        const std::size_t begin = lists.begin_line(segment);
        float sum = 0.0f;
        for (std::size_t i = 0; i < images; ++i) {
            const std::size_t pixel = first_pixel + i * plane;
            const std::size_t found = lists.add(part_of(planes[i], at, plane), segment, pixel, band.offsets + pixel,
                                                band.output_offsets[o - outputs.begin]);
            total.nonzero += found;
            if (with_bias_)
                for (std::size_t e = 0; e < found; ++e) sum += lists.entries()[e].value;
        }
        lists.end_line(segment, o - run.channels.begin, begin);
        if (with_bias_) sums_[b * layer_.outputs + o] = sum;
    };
    for (std::size_t o = outputs.begin; o < outputs.end; o += together) {
        const std::size_t count = std::min(together, outputs.end - o);
        for (std::size_t i = 0; i < images; ++i) {
            const std::size_t start = ((block.image.begin + i) * layer_.outputs + o) * pixels_ +
                                      block.y.begin * layer_.x.output + block.x.begin;
            planes[i] = fetch(start, count * plane, random + i * (count * plane + kDrawnBesides), total);
        }
        for (std::size_t j = 0; j < count; ++j) list_output(o + j, j * plane);
    }
}

}  // namespace lograd
