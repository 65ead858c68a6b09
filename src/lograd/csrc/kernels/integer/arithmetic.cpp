#include "kernels/integer/arithmetic.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"

namespace lograd {
namespace {

// Units of two products each that a signed 16-bit sum holds; none if one is too much.
std::size_t steps_of(int a, int b) { return static_cast<std::size_t>(32767 / std::max(1, 2 * a * b)); }

int farthest(int zero, int largest) { return std::max(zero, largest - zero); }

// Units of which raw sums stay inside 32 bits.
constexpr std::size_t kLongest = 8192;

// Units of a segment where no sums are of 16 bits, and those over which sums of a' or of b' stay inside 32 bits.
constexpr std::size_t kUnlimited = std::size_t{1} << 20;

}  // namespace

Arithmetic::Arithmetic(const IntegerKernels& table, int a_zero_, int a_largest, int b_zero_, int b_largest,
                       std::size_t k)
    : kernels(table), units(table.bytes), a_shift(0), a_zero(a_zero_) {
    const bool fits = b_zero_ <= 128 && b_largest - b_zero_ <= 127;
    b_shift = fits ? b_zero_ : 128;
    b_zero = b_zero_ - b_shift;
    a_most = std::max(a_largest, a_zero_);
    steps = steps_of(a_most, farthest(b_shift, b_largest));
    if (table.bytes.tile == nullptr || (!table.exact && steps == 0)) take_words();
    if (table.exact) steps = kUnlimited;
    const auto product = std::int64_t{farthest(a_zero_, a_largest)} * farthest(b_zero_, b_largest);
    wide = product != 0 && static_cast<std::int64_t>(k) > 0x7fffffff / product;
}

void Arithmetic::take_words() {
    units = kernels.words;
    steps = kUnlimited;
    a_shift += a_zero, b_shift += b_zero;
    a_zero = b_zero = 0;
}

std::size_t Arithmetic::steps_for(const Panels& panels, std::size_t rows, int threads) const {
    constexpr std::size_t few = 128;
    if (steps >= kLongestGroup || rows < few || panels.count == 0) return steps;
    std::vector<std::size_t> each(panels.count);
    parallel_tasks(panels.count, threads, [&](std::size_t, std::size_t panel) {
        std::vector<std::int16_t> sums((panels.units / kGroupBlock + 1) * 2 * kernels.nr);
        each[panel] =
            kernels.longest_group(panels.first + panel * panels.stride, panels.units, 32767 / a_most, sums.data());
    });
    return std::max(steps, *std::min_element(each.begin(), each.end()));
}

void append(std::vector<Segment>& groups, Segment segment, std::size_t steps, std::ptrdiff_t a_step,
            std::ptrdiff_t b_step) {
    if (segment.units == 0) return;
    // A segment that a group holds is not cut, as each piece has its price.
    std::size_t held = segment.units;
    for (std::size_t i = groups.size(); i > 0 && (i == groups.size() || groups[i - 1].flush == 0) && held <= steps; --i)
        held += groups[i - 1].units;
    if (held <= steps && !groups.empty()) groups.back().flush = 0;
    const std::size_t pieces = (segment.units - 1) / steps + 1, most = (segment.units - 1) / pieces + 1;
    while (segment.units != 0) {
        const Segment piece{segment.a, segment.b, std::min(most, segment.units), 1};
        groups.push_back(piece);
        segment.a += a_step * static_cast<std::ptrdiff_t>(piece.units);
        segment.b += b_step * static_cast<std::ptrdiff_t>(piece.units);
        segment.units -= piece.units;
    }
}

ColumnTerms::ColumnTerms(void* memory, std::size_t count, bool has_bias) {
    wide_offsets = static_cast<std::int64_t*>(memory);
    offsets = reinterpret_cast<std::int32_t*>(wide_offsets + count);
    scales = reinterpret_cast<float*>(offsets + count);
    bias = has_bias ? scales + count : nullptr;
}

void ColumnTerms::fill(std::size_t columns, std::size_t count, const Scales& given, const float* given_bias) const {
    std::fill(wide_offsets, wide_offsets + count, 0);
    std::fill(offsets, offsets + count, 0);
    std::fill(scales, scales + count, given.values == nullptr ? 1.0f : given.values[0]);
    if (given.values != nullptr && given.count > 1) std::copy(given.values, given.values + columns, scales);
    if (bias == nullptr) return;
    std::fill(bias, bias + count, 0.0f);
    std::copy(given_bias, given_bias + columns, bias);
}

void KLoop::operator()(const std::uint8_t* const* rows, const std::uint8_t* panel, Sums& sums) const {
    Tile tile{rows, panel, segments_, count_, a_step_, b_step_, sums.tile, false};
    if (!arithmetic_.wide) return arithmetic_.units.tile(tile);
    const std::size_t size = arithmetic_.kernels.mr * arithmetic_.kernels.nr;
    std::fill(sums.wide, sums.wide + size, 0);
    for (std::size_t s = 0; s < count_; ++s) {
        Segment part = segments_[s];
        part.flush = 1, tile.segments = &part, tile.count = 1;
        for (std::size_t left = part.units; left != 0; left -= part.units) {
            part.units = std::min(left, kLongest);
            arithmetic_.units.tile(tile);
            for (std::size_t i = 0; i < size; ++i) sums.wide[i] += sums.tile[i];
            part.a += a_step_ * static_cast<std::ptrdiff_t>(part.units);
            part.b += b_step_ * static_cast<std::ptrdiff_t>(part.units);
        }
    }
}

void KLoop::column_offsets(const std::uint8_t* panel, std::size_t k, const ColumnTerms& columns,
                           std::size_t first) const {
    if (arithmetic_.a_zero == 0) return;
    static const std::uint8_t ones[4] = {1, 1, 1, 1};
    const std::uint8_t* rows[kMaxMR];
    std::fill(rows, rows + kMaxMR, ones);
    alignas(64) std::int32_t sums[kMaxMR * kMaxNR];
    std::int64_t totals[kMaxNR] = {};
    std::vector<Segment> part;
    for (std::size_t s = 0, units = 0; s < count_; ++s) {
        part.push_back({0, segments_[s].b, segments_[s].units, segments_[s].flush});
        units += part.back().units;
        if (units < kUnlimited && s + 1 < count_) continue;
        part.back().flush = 1;
        arithmetic_.units.tile({rows, panel, part.data(), part.size(), 0, b_step_, sums, false});
        for (std::size_t c = 0; c < arithmetic_.kernels.nr; ++c) totals[c] += sums[c];
        part.clear(), units = 0;
    }
    for (std::size_t c = 0; c < arithmetic_.kernels.nr; ++c) {
        const std::int64_t offset =
            arithmetic_.a_zero * (totals[c] - static_cast<std::int64_t>(k) * arithmetic_.b_zero);
        columns.wide_offsets[first + c] = offset;
        columns.offsets[first + c] = static_cast<std::int32_t>(static_cast<std::uint32_t>(offset));
    }
}

bool KLoop::row_offsets(const std::uint8_t* const* rows, std::int64_t* offsets) const {
    if (arithmetic_.b_zero == 0) return false;
    alignas(64) std::uint8_t ones[4 * kMaxNR];
    std::fill(ones, ones + sizeof ones, std::uint8_t{1});
    alignas(64) std::int32_t sums[kMaxMR * kMaxNR];
    std::fill(offsets, offsets + arithmetic_.kernels.mr, 0);
    std::vector<Segment> part;
    for (std::size_t s = 0, units = 0; s < count_; ++s) {
        part.push_back({segments_[s].a, 0, segments_[s].units, segments_[s].flush});
        units += part.back().units;
        if (units < kUnlimited && s + 1 < count_) continue;
        part.back().flush = 1;
        arithmetic_.units.tile({rows, ones, part.data(), part.size(), a_step_, 0, sums, false});
        for (std::size_t r = 0; r < arithmetic_.kernels.mr; ++r)
            offsets[r] += std::int64_t{arithmetic_.b_zero} * sums[r * arithmetic_.kernels.nr];
        part.clear(), units = 0;
    }
    return true;
}

void write_tile(const Arithmetic& arithmetic, const Sums& sums, const ColumnTerms& columns, const OutputTile& place) {
    const std::size_t first = place.first_column, width = arithmetic.kernels.nr;
    if (!arithmetic.wide) {
        std::int32_t row_offsets[kMaxMR] = {};
        for (std::size_t r = 0; place.row_offsets != nullptr && r < place.rows; ++r)
            row_offsets[r] = static_cast<std::int32_t>(static_cast<std::uint32_t>(place.row_offsets[r]));
        arithmetic.kernels.epilogue({sums.tile, place.rows, place.columns, columns.offsets + first,
                                     place.row_offsets == nullptr ? nullptr : row_offsets, columns.scales + first,
                                     place.row_scales, columns.bias == nullptr ? nullptr : columns.bias + first,
                                     place.out, place.past_cache});
        return;
    }
    for (std::size_t r = 0; r < place.rows; ++r)
        for (std::size_t c = 0; c < place.columns; ++c) {
            std::int64_t exact = sums.wide[r * width + c] - columns.wide_offsets[first + c];
            if (place.row_offsets != nullptr) exact -= place.row_offsets[r];
            float value = static_cast<float>(exact) * columns.scales[first + c];
            if (place.row_scales != nullptr) value *= place.row_scales[r];
            if (columns.bias != nullptr) value += columns.bias[first + c];
            place.out[r][c] = value;
        }
}

}  // namespace lograd
