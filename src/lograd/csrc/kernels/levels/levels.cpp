#include "kernels/levels/levels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include "base/tensor.h"
#include "isa/table.h"

namespace lograd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLargest = std::numeric_limits<float>::max();
// Ranges end here, so that every code decodes to a finite number.
constexpr double kWidest = 3.4e38;
constexpr LevelsSeen kNothing{kInfinity, -kInfinity, true, 0, 0, 0};
// Codes of so many elements are turned at a time, in the L2 cache; and of so many places of a plane at most.
constexpr std::size_t kTurned = 65536, kPlaces = 4096;
// As _SHARES of ops/affine.py.
constexpr int kShares = 4096;

void add(LevelsSeen& to, const LevelsSeen& from) {
    to.low = std::min(to.low, from.low), to.high = std::max(to.high, from.high);
    to.finite = to.finite && from.finite;
    to.zeros += from.zeros, to.clipped += from.clipped, to.zeros_before += from.zeros_before;
}

double quotient(double steps, double width) { return width > 0 ? steps / width : std::numeric_limits<double>::max(); }

// The largest power of two that is at most x, which is positive and finite.
double power_below(double x) {
    int exponent;
    std::frexp(x, &exponent);
    return std::ldexp(1.0, exponent - 1);
}

// `level_parameters` of ops/affine.py.
LevelParameters parameters_of(float from, float to, double bins, const LevelRounding& r) {
    const float largest_float = std::numeric_limits<float>::max();
    if (!std::isfinite(from) || !std::isfinite(to)) {
        const float zero = r.symmetric ? static_cast<float>(bins / 2) : 0.0f;
        return {std::numeric_limits<float>::quiet_NaN(), zero, -largest_float, largest_float};
    }
    const double low = std::min<double>(from, 0.0), high = std::max<double>(to, 0.0);
    double zero, wide;
    if (r.symmetric) {
        zero = bins / 2, wide = quotient(zero, std::max(-low, high));
    } else if (low < 0 && high > 0) {
        const double below = std::min(std::max(std::floor(-low * bins / (high - low)), 1.0), bins - 1);
        const double above = std::min(below + 1, bins - 1);
        const double first = std::min(quotient(below, -low), quotient(bins - below, high));
        const double second = std::min(quotient(above, -low), quotient(bins - above, high));
        zero = second > first ? above : below, wide = std::max(first, second);
    } else {
        zero = low < 0 ? bins : 0.0, wide = quotient(bins, low < 0 ? -low : high);
    }
    double fitting = std::min(wide, kLargest), least = std::max(zero, bins - zero) / kWidest;
    if (r.power_of_two) fitting = power_below(fitting), least = 2 * power_below(least);
    fitting = std::max(fitting, least);
    const float scale = static_cast<float>(fitting);
    return {scale, static_cast<float>(zero), static_cast<float>(std::min(low, -zero / scale)),
            static_cast<float>(std::max(high, (bins - zero) / scale)), !(low < 0) && !(high > 0)};
}

// The whole job, and the parts of it that threads do.
class Job {
    const LevelTensor& t_;
    const LevelRounding& r_;
    std::vector<float> factors_;
    LevelFold fold_{};
    float *parameters_, *found_;

public:
    const std::size_t rows, size;  // ranges, and elements of each
    const float bins;

    Job(const LevelTensor& t, const LevelRounding& r, float* parameters, float* found)
        : t_(t), r_(r), parameters_(parameters), found_(found), rows(r.per_row ? t.batch : 1),
          size(t.batch * t.channels * t.inner / std::max<std::size_t>(rows, 1)),
          bins(static_cast<float>((1 << r.bits) - (r.symmetric ? 2 : 1))) {
        if (r.fold == nullptr) return;
        factors_.resize(r.fold_channels + kFoldTail);
        for (std::size_t k = 0; k < factors_.size(); ++k) factors_[k] = r.fold[k % r.fold_channels];
        fold_ = {factors_.data(), r.fold_channels, r.fold_inner};
    }

    LevelRun run(std::size_t begin, std::size_t count, std::uint8_t* codes, const LevelParameters& p, bool look) const {
        const Piece piece{t_.type,    element(t_.x, begin, bytes(t_.type)), codes, count, r_.key.offset + begin,
                          r_.key.seed};
        return {piece, begin, factors_.empty() ? nullptr : &fold_, p, bins, r_.stochastic, look};
    }

    LevelsSeen range(std::size_t begin, std::size_t count) const {
        LevelsSeen seen;
        kernels().levels.range(run(begin, count, nullptr, {}, true), seen);
        return seen;
    }

    LevelsSeen quantize(std::size_t begin, std::size_t count, std::uint8_t* codes, const LevelParameters& p,
                        bool look) const {
        LevelsSeen seen;
        kernels().levels.quantize(run(begin, count, codes, p, look), seen);
        return seen;
    }

    // Channels from `channel` on and places from `place` on of one of the batch, with their codes side by side.
    struct Block {
        std::size_t image, channel, channels, place, places;
    };

    LevelsSeen turn(const Block& b, std::vector<std::uint8_t>& scratch, const LevelParameters& p, bool look) const {
        scratch.resize((b.channels + 16) * b.places + 16);
        const std::size_t begin = (b.image * t_.channels + b.channel) * t_.inner + b.place;
        LevelsSeen all = kNothing;
        if (b.places == t_.inner) {
            all = quantize(begin, b.channels * b.places, scratch.data(), p, look);
        } else {
            for (std::size_t k = 0; k < b.channels; ++k)
                add(all, quantize(begin + k * t_.inner, b.places, scratch.data() + k * b.places, p, look));
        }
        std::uint8_t* to = t_.codes + (b.image * t_.inner + b.place) * t_.channels + b.channel;
        kernels().levels.transpose(scratch.data(), b.channels, b.places, b.places, to, t_.channels);
        return all;
    }

    // How planes are cut into blocks.
    struct Cut {
        std::size_t places, channels, across, down;  // of a block; blocks of an image
    };

    Cut cut() const {
        const std::size_t places = std::min(std::max<std::size_t>(t_.inner, 1), kPlaces);
        const std::size_t channels = std::min(t_.channels, std::max<std::size_t>(kTurned / places / 16 * 16, 16));
        return {places, channels, (t_.channels + channels - 1) / std::max<std::size_t>(channels, 1),
                (t_.inner + places - 1) / places};
    }

    Block block(const Cut& c, std::size_t number) const {
        const std::size_t image = number / (c.across * c.down), rest = number % (c.across * c.down);
        const std::size_t channel = rest / c.down * c.channels, place = rest % c.down * c.places;
        return {image, channel, std::min(c.channels, t_.channels - channel), place,
                std::min(c.places, t_.inner - place)};
    }

    LevelParameters parameters(std::size_t row, const LevelsSeen* seen) const {
        const bool none = seen != nullptr && seen->low > seen->high;
        const float low = seen == nullptr ? r_.limits[row] : none ? 0.0f : seen->low;
        const float high = seen == nullptr ? r_.limits[rows + row] : none ? 0.0f : seen->high;
        return parameters_of(low, high, bins, r_);
    }

    // Writes what is known of a row; its part of the counts.
    Counts finish(std::size_t row, const LevelParameters& p, const LevelsSeen& seen) const {
        const bool none = seen.low > seen.high;
        found_[row] = none ? 0.0f : seen.low + 0.0f;  // -0 becomes 0
        found_[rows + row] = none ? 0.0f : seen.high + 0.0f;
        const bool known = seen.finite && !std::isnan(p.scale);
        parameters_[row] = !known ? std::numeric_limits<float>::quiet_NaN() : p.empty ? kInfinity : p.scale;
        parameters_[rows + row] = p.zero;
        return {true, known ? seen.zeros : 0, known ? 0 : static_cast<std::int64_t>(size), seen.clipped,
                seen.zeros_before};
    }

    Counts whole() const;
    Counts row_by_row() const;
};

// One range for the tensor.
Counts Job::whole() const {
    std::mutex mutex;
    LevelsSeen seen = kNothing;
    const auto together = [&](const LevelsSeen& own) {
        const std::lock_guard<std::mutex> lock(mutex);
        add(seen, own);
    };
    const bool given = r_.limits != nullptr;
    if (!given)
        parallel_for(size, kGrain, r_.threads,
                     [&](std::size_t begin, std::size_t end) { together(range(begin, end - begin)); });
    const LevelParameters p = parameters(0, given ? nullptr : &seen);
    const bool look = given || !seen.finite;
    if (!t_.transposed) {
        parallel_for(size, kGrain, r_.threads, [&](std::size_t begin, std::size_t end) {
            together(quantize(begin, end - begin, t_.codes + begin, p, look));
        });
        return finish(0, p, seen);
    }
    const Cut c = cut();
    const std::size_t blocks = size == 0 ? 0 : t_.batch * c.across * c.down;
    std::vector<std::vector<std::uint8_t>> scratch(static_cast<std::size_t>(std::max(r_.threads, 1)));
    parallel_tasks(blocks, size < 2 * kTurned ? 1 : r_.threads, [&](std::size_t worker, std::size_t number) {
        together(turn(block(c, number), scratch[worker], p, look));
    });
    return finish(0, p, seen);
}

// A range for each row, which is read twice while it lies in the cache.
Counts Job::row_by_row() const {
    Total total;
    const Cut c = cut();
    parallel_for(rows * size, std::max<std::size_t>(size, 1), r_.threads, [&](std::size_t begin, std::size_t end) {
        std::vector<std::uint8_t> scratch;
        for (std::size_t row = begin / size; row < end / size; ++row) {
            LevelsSeen seen = r_.limits == nullptr ? range(row * size, size) : kNothing;
            const LevelParameters p = parameters(row, r_.limits == nullptr ? &seen : nullptr);
            const bool look = r_.limits != nullptr || !seen.finite;
            if (!t_.transposed) {
                add(seen, quantize(row * size, size, t_.codes + row * size, p, look));
            } else {
                const std::size_t blocks = c.across * c.down;
                for (std::size_t k = 0; k < blocks; ++k) add(seen, turn(block(c, row * blocks + k), scratch, p, look));
            }
            total.add(finish(row, p, seen));
        }
    });
    if (size == 0)
        for (std::size_t row = 0; row < rows; ++row)
            finish(row, parameters(row, r_.limits == nullptr ? &kNothing : nullptr), kNothing);
    return total.get();
}

}  // namespace

Counts integer_codes(const LevelTensor& tensor, const LevelRounding& rounding, float* parameters, float* found) {
    const Job job(tensor, rounding, parameters, found);
    return rounding.per_row ? job.row_by_row() : job.whole();
}

void column_largest(const float* x, std::size_t batch, std::size_t channels, std::size_t inner, const float* factors,
                    float* out, int threads) {
    // Rows that are as wide as a few vectors or more; without factors it does not matter whose they are.
    std::size_t rows = batch, width = channels;
    while (inner == 1 && factors == nullptr && width < 64 && rows % 2 == 0 && rows != 0) rows /= 2, width *= 2;
    std::vector<std::int32_t> largest(width, 0);
    std::mutex mutex;
    const std::size_t size = inner == 1 ? width : channels * inner;
    parallel_for(rows * size, std::max<std::size_t>(size, 1), threads, [&](std::size_t begin, std::size_t end) {
        std::vector<std::int32_t> own(width, 0);
        const std::size_t first = begin / size, count = end / size - first;
        if (inner == 1) {
            kernels().levels.largest_of_columns(x + begin, count, width, factors == nullptr ? nullptr : factors + first,
                                                own.data());
        } else {
            for (std::size_t plane = 0; plane < count * channels; ++plane)
                own[plane % channels] =
                    std::max(own[plane % channels], kernels().levels.largest_of_all(x + begin + plane * inner, inner));
        }
        const std::lock_guard<std::mutex> lock(mutex);
        for (std::size_t c = 0; c < width; ++c) largest[c] = std::max(largest[c], own[c]);
    });
    for (std::size_t c = channels; c < width; ++c) largest[c % channels] = std::max(largest[c % channels], largest[c]);
    constexpr std::int32_t infinity = 0x7f800000;
    for (std::size_t c = 0; c < channels; ++c) {
        if (largest[c] > infinity) out[c] = std::numeric_limits<float>::quiet_NaN();
        else std::memcpy(out + c, &largest[c], sizeof(float));
    }
}

namespace {

// The zero point with the least sum of squared steps, each in units of its row's range: `row_limits` of ops/affine.py.
int shared_zero(const std::vector<double>& below, const std::vector<double>& above, int last) {
    const int fine = kShares / last;
    const std::int64_t places = std::int64_t{fine} * last;
    std::vector<std::int64_t> rows(static_cast<std::size_t>(places) + 1);
    bool some_below = false, some_above = false;
    for (std::size_t i = 0; i < below.size(); ++i) {
        some_below = some_below || below[i] > 0, some_above = some_above || above[i] > 0;
        const double extent = below[i] + above[i];
        if (extent > 0)
            ++rows[static_cast<std::size_t>(std::floor(below[i] / extent * static_cast<double>(places) + 0.5))];
    }
    if (!some_below || !some_above) return some_below ? last : 0;
    // Sums over rows whose lower end, and whose upper end, decides their step.
    std::int64_t low = 0, high = 0;
    for (std::int64_t k = 1; k <= places; ++k) low += rows[static_cast<std::size_t>(k)] * k * k;
    int best = 1;
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t k = 0; k < places; ++k) {
        const std::int64_t count = rows[static_cast<std::size_t>(k)], left = places - k;
        low -= count * k * k, high += count * left * left;
        if (k == 0 || k % fine != 0) continue;
        const double cost = static_cast<double>(low) / static_cast<double>(k * k) +
                            static_cast<double>(high) / static_cast<double>(left * left);
        if (cost < least) least = cost, best = static_cast<int>(k / fine);
    }
    return best;
}

}  // namespace

void row_limits(const float* x, std::size_t rows, std::size_t columns, int bits, float* limits, int threads) {
    std::vector<double> below(rows), above(rows);
    parallel_for(rows * columns, std::max<std::size_t>(columns, 1), threads, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin / columns; row < end / columns; ++row) {
            const Piece piece{Type::kFloat32, x + row * columns, nullptr, columns, 0, 0};
            LevelsSeen seen;
            kernels().levels.range({piece, 0, nullptr, {}, 0, false, true}, seen);
            if (seen.low < 0) below[row] = -static_cast<double>(seen.low);
            if (seen.high > 0 && seen.low <= seen.high) above[row] = seen.high;
        }
    });
    const int last = (1 << bits) - 1, zero = shared_zero(below, above, last);
    for (std::size_t row = 0; row < rows; ++row) {
        const double fitting = std::max(below[row] / std::max(zero, 1), above[row] / std::max(last - zero, 1));
        // A hair more, so that the largest number does not count as saturated.
        const double step =
            std::min(std::max(fitting * (1 + 0x1p-22), double{std::numeric_limits<float>::min()}), kLargest / last);
        limits[row] = static_cast<float>(-zero * step), limits[rows + row] = static_cast<float>((last - zero) * step);
    }
}

}  // namespace lograd
