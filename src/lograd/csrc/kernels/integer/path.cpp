#include "kernels/integer/path.h"

#include <algorithm>
#include <cstring>

namespace lograd {
namespace {

// Units of two products each that a signed 16-bit sum holds; none if one is too much.
std::size_t steps_of(int a, int b) { return static_cast<std::size_t>(32767 / std::max(1, 2 * a * b)); }

int farthest(int zero, int largest) { return std::max(zero, largest - zero); }

// Units of which raw sums stay inside 32 bits.
constexpr std::size_t kLongest = 8192;

}  // namespace

Path::Path(const IntegerKernels& table, int a_zero_, int a_largest, int b_zero_, int b_largest, std::size_t k)
    : kernels(table), units(table.bytes), a_shift(0), a_zero(a_zero_) {
    const bool fits = b_zero_ <= 128 && b_largest - b_zero_ <= 127;
    b_shift = fits ? b_zero_ : 128;
    b_zero = b_zero_ - b_shift;
    const int a_most = std::max(a_largest, a_zero_), b_most = farthest(b_shift, b_largest);
    steps = steps_of(a_most, b_most), column_steps = steps_of(1, b_most), row_steps = steps_of(a_most, 1);
    if (table.bytes.tile == nullptr || (!table.exact && steps == 0)) take_words();
    const auto product = std::int64_t{farthest(a_zero_, a_largest)} * farthest(b_zero_, b_largest);
    wide = product != 0 && static_cast<std::int64_t>(k) > 0x7fffffff / product;
}

void Path::take_words() {
    units = kernels.words;
    a_shift += a_zero, b_shift += b_zero;
    a_zero = b_zero = 0;
}

Columns::Columns(void* memory, std::size_t count, bool has_bias) {
    wide_offsets = static_cast<std::int64_t*>(memory);
    offsets = reinterpret_cast<std::int32_t*>(wide_offsets + count);
    scales = reinterpret_cast<float*>(offsets + count);
    bias = has_bias ? scales + count : nullptr;
}

void Columns::fill(std::size_t columns, std::size_t count, const Scales& given, const float* given_bias) const {
    std::fill(wide_offsets, wide_offsets + count, 0);
    std::fill(offsets, offsets + count, 0);
    std::fill(scales, scales + count, given.values == nullptr ? 1.0f : given.values[0]);
    if (given.values != nullptr && given.count > 1) std::copy(given.values, given.values + columns, scales);
    if (bias == nullptr) return;
    std::fill(bias, bias + count, 0.0f);
    std::copy(given_bias, given_bias + columns, bias);
}

void Runs::operator()(const std::uint8_t* const* rows, const std::uint8_t* panel, Sums& sums) const {
    Tile tile{rows, panel, segments_, count_, a_step_, b_step_, path_.steps, sums.tile, false};
    if (!path_.wide) return path_.units.tile(tile);
    const std::size_t size = path_.kernels.rows * path_.kernels.columns;
    std::fill(sums.wide, sums.wide + size, 0);
    for (std::size_t s = 0; s < count_; ++s) {
        Segment part = segments_[s];
        tile.segments = &part, tile.count = 1;
        for (std::size_t left = part.units; left != 0; left -= part.units) {
            part.units = std::min(left, kLongest);
            path_.units.tile(tile);
            for (std::size_t i = 0; i < size; ++i) sums.wide[i] += sums.tile[i];
            part.a += a_step_ * static_cast<std::ptrdiff_t>(part.units);
            part.b += b_step_ * static_cast<std::ptrdiff_t>(part.units);
        }
    }
}

void Runs::column_offsets(const std::uint8_t* panel, std::size_t k, const Columns& columns, std::size_t first) const {
    if (path_.a_zero == 0) return;
    static const std::uint8_t ones[4] = {1, 1, 1, 1};
    const std::uint8_t* rows[kMostRows];
    std::fill(rows, rows + kMostRows, ones);
    alignas(64) std::int32_t sums[kMostRows * kMostColumns];
    std::int64_t totals[kMostColumns] = {};
    for (std::size_t s = 0; s < count_; ++s) {
        Segment part = segments_[s];
        part.a = 0;
        for (std::size_t left = part.units; left != 0; left -= part.units) {
            part.units = std::min(left, kLongest);
            path_.units.tile({rows, panel, &part, 1, 0, b_step_, path_.column_steps, sums, false});
            for (std::size_t c = 0; c < path_.kernels.columns; ++c) totals[c] += sums[c];
            part.b += b_step_ * static_cast<std::ptrdiff_t>(part.units);
        }
    }
    for (std::size_t c = 0; c < path_.kernels.columns; ++c) {
        const std::int64_t offset = path_.a_zero * (totals[c] - static_cast<std::int64_t>(k) * path_.b_zero);
        columns.wide_offsets[first + c] = offset;
        columns.offsets[first + c] = static_cast<std::int32_t>(static_cast<std::uint32_t>(offset));
    }
}

bool Runs::row_offsets(const std::uint8_t* const* rows, std::int64_t* offsets) const {
    if (path_.b_zero == 0) return false;
    alignas(64) std::uint8_t ones[4 * kMostColumns];
    std::fill(ones, ones + sizeof ones, std::uint8_t{1});
    alignas(64) std::int32_t sums[kMostRows * kMostColumns];
    std::fill(offsets, offsets + path_.kernels.rows, 0);
    for (std::size_t s = 0; s < count_; ++s) {
        Segment part = segments_[s];
        part.b = 0;
        for (std::size_t left = part.units; left != 0; left -= part.units) {
            part.units = std::min(left, kLongest);
            path_.units.tile({rows, ones, &part, 1, a_step_, 0, path_.row_steps, sums, false});
            for (std::size_t r = 0; r < path_.kernels.rows; ++r)
                offsets[r] += std::int64_t{path_.b_zero} * sums[r * path_.kernels.columns];
            part.a += a_step_ * static_cast<std::ptrdiff_t>(part.units);
        }
    }
    return true;
}

void finish(const Path& path, const Sums& sums, const Columns& columns, const Place& place) {
    const std::size_t first = place.first_column, width = path.kernels.columns;
    if (!path.wide) {
        std::int32_t row_offsets[kMostRows] = {};
        for (std::size_t r = 0; place.row_offsets != nullptr && r < place.rows; ++r)
            row_offsets[r] = static_cast<std::int32_t>(static_cast<std::uint32_t>(place.row_offsets[r]));
        path.kernels.finish({sums.tile, place.rows, place.columns, columns.offsets + first,
                             place.row_offsets == nullptr ? nullptr : row_offsets, columns.scales + first,
                             place.row_scales, columns.bias == nullptr ? nullptr : columns.bias + first, place.out,
                             place.past_cache});
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
