#include "kernels/integer/layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/kept.h"
#include "base/parallel.h"
#include "kernels/integer/integer.h"
#include "kernels/levels/levels.h"

namespace lograd {
namespace {

constexpr float kTiny = std::numeric_limits<float>::min(), kLargest = std::numeric_limits<float>::max();
// The slots of a site's counters that are written here; the first four are those of `Counts`.
enum Counter { kZeros, kNan, kClipped, kZerosBefore, kElements, kTreated, kFellBack = 8 };
// As LONGEST_ROW of engine/site.py: an element of a tensor may have so many random numbers.
constexpr std::int64_t kRandomNumbers = 128;
// As MOMENTUM of treatments/integers.py.
constexpr double kMomentum = 0.9;
// As FEWEST of engine/rows.py: the share of rows of zeros from which products of the others are faster.
constexpr double kFewestZeroRows = 0.1;
// As FEWEST_PIXELS there.
constexpr double kFewestZeroPixels = 0.7;
// Factors of rows are at least this, so that no scale overflows: `_above_zero` of treatments/integers.py.
constexpr float kLeastFactor = 0x1p-60f;

bool is_ordinary(float step, double largest) { return step >= kTiny && static_cast<double>(step) <= largest; }

std::size_t elements(const OperandTensor& t) { return t.batch * t.channels * t.inner; }

int zero_of(const Codes& codes) { return static_cast<int>(codes.parameters[codes.ranges]); }

bool is_finite(const Codes& codes) {
    return std::none_of(codes.parameters, codes.parameters + codes.ranges, [](float x) { return std::isnan(x); });
}

// The differences between neighbouring levels; 0 for a range of nothing but zero.
std::vector<float> steps_of(const Codes& codes) {
    std::vector<float> steps(codes.ranges);
    for (std::size_t i = 0; i < codes.ranges; ++i) steps[i] = 1.0f / codes.parameters[i];
    return steps;
}

// An operand that is rounded, and what will be counted if its product is computed here.
class Rounding {
    const OperandRule& rule_;
    const OperandTensor& t_;
    const Codes& codes_;
    Counts counts_{};
    std::vector<float> found_;

public:
    Rounding(const OperandRule& rule, const OperandTensor& t, const Codes& codes)
        : rule_(rule), t_(t), codes_(codes), found_(2 * codes.ranges) {}

    // With ranges that are given or, without limits, found; channels or columns may have factors.
    void round(const float* limits, const float* factors, std::size_t count, std::size_t inner, int threads) {
        const bool together = t_.channels_last || (t_.inner == 1 || t_.channels == 1);
        const LevelTensor tensor =
            together ? LevelTensor{Type::kFloat32, t_.x, codes_.codes, t_.batch, 1, t_.channels * t_.inner, false}
                     : LevelTensor{Type::kFloat32, t_.x, codes_.codes, t_.batch, t_.channels, t_.inner, true};
        LevelRounding how{};
        how.per_row = codes_.ranges > 1 || rule_.range == OperandRule::kFirst;
        how.limits = limits;
        how.fold = factors, how.fold_channels = count, how.fold_inner = inner;
        how.bits = rule_.bits;
        how.symmetric = rule_.symmetric, how.power_of_two = rule_.power_of_two, how.stochastic = rule_.stochastic;
        how.key = {static_cast<std::uint64_t>(rule_.key[0]), static_cast<std::uint64_t>(rule_.key[1])};
        how.threads = threads;
        LevelTensor whole = tensor;
        if (!how.per_row && together) whole.batch = 1, whole.inner = elements(t_);
        counts_ = integer_codes(whole, how, codes_.parameters, found_.data());
    }

    // Activations and weights.
    void round(int threads) {
        if (rule_.shared_zero) {
            std::vector<float> limits(2 * codes_.ranges);
            row_limits(t_.x, codes_.ranges, elements(t_) / codes_.ranges, rule_.bits, limits.data(), threads);
            return round(limits.data(), nullptr, 0, 1, threads);
        }
        if (rule_.memory == nullptr || rule_.memory[2] == 0) return round(nullptr, nullptr, 0, 1, threads);
        const float limits[2] = {static_cast<float>(rule_.memory[0]), static_cast<float>(rule_.memory[1])};
        round(limits, nullptr, 0, 1, threads);
    }

    bool finite() const { return counts_.nans == 0; }

    // Counts the tensor, takes its range into the memory, and moves the key on to the next random numbers.
    void count() const {
        if (rule_.counters == nullptr) return;
        std::int64_t* c = rule_.counters;
        c[kZeros] += counts_.zeros, c[kNan] += counts_.nans, c[kClipped] += counts_.clipped;
        c[kZerosBefore] += counts_.zeros_before;
        c[kElements] += static_cast<std::int64_t>(elements(t_)), c[kTreated] += 1, c[kFellBack] += !finite();
        rule_.key[1] += kRandomNumbers * static_cast<std::int64_t>(elements(t_));
        double* memory = rule_.memory;
        if (memory == nullptr || !finite() || (found_[0] == 0 && found_[1] == 0)) return;
        for (int end = 0; end < 2; ++end)
            memory[end] = memory[2] != 0 ? kMomentum * memory[end] + (1 - kMomentum) * found_[end]
                                         : static_cast<double>(found_[end]);
        memory[2] += 1;
    }
};

// The steps of an operand as factors of the gradient that it meets, and the power of two that they are divided by.
struct Fold {
    std::vector<float> factors;
    float unit = 1;

    explicit Fold(const Codes& codes) : factors(steps_of(codes)) {
        float largest = 0;
        for (float& factor : factors) {
            if (!(factor > 0)) factor = 0;
            largest = std::max(largest, factor);
        }
        int exponent;
        std::frexp(largest, &exponent);
        if (largest > 0) unit = std::ldexp(1.0f, exponent - 1);
        for (float& factor : factors) factor /= unit;
    }
};

// True if all codes are that of zero.
bool is_zero(const std::uint8_t* codes, std::size_t count, int zero) {
    constexpr std::size_t together = 64;
    const auto code = static_cast<std::uint8_t>(zero);
    for (std::size_t done = 0; done < count; done += together) {
        std::uint8_t any = 0;
        for (std::size_t i = done; i < std::min(count, done + together); ++i) any |= codes[i] ^ code;
        if (any != 0) return false;
    }
    return true;
}

// Rows of a gradient whose codes are not all zero, where leaving out the others pays.  A row is a sample or, in a
// convolution of one pixel, a pixel.
class RowsLeft {
    std::vector<std::size_t> rows_;
    std::size_t total_, count_;
    bool all_ = true, pixels_ = false;

    void look(const std::uint8_t* codes, std::size_t total, std::size_t size, int zero, double fewest) {
        rows_.clear();
        for (std::size_t row = 0; row < total; ++row)
            if (!is_zero(codes + row * size, size, zero)) rows_.push_back(row);
        all_ = rows_.empty() || static_cast<double>(rows_.size()) > (1 - fewest) * static_cast<double>(total);
        total_ = total, count_ = all_ ? total : rows_.size();
    }

public:
    RowsLeft(const LayerShape& s, const GradientProduct& p, const Codes& own) : total_(p.g.batch), count_(p.g.batch) {
        if (!p.skips_rows) return;
        const int zero = zero_of(own);
        if (s.convolves && is_pixelwise(s.layer)) {
            look(own.codes, p.g.batch * p.g.inner, p.g.channels, zero, kFewestZeroPixels);
            pixels_ = !all_;
        }
        if (!pixels_) look(own.codes, p.g.batch, p.g.channels * p.g.inner, zero, kFewestZeroRows);
    }

    bool all() const { return all_; }
    bool pixels() const { return pixels_; }
    std::size_t count() const { return count_; }

    // Those of a matrix, one behind the other; the matrix itself if they are all.
    template <class T> const T* of(const T* from, std::size_t size, Buffer& memory) const {
        if (all_) return from;
        T* to = memory.get<T>(count_ * size);
        for (std::size_t i = 0; i < count_; ++i) std::copy_n(from + rows_[i] * size, size, to + i * size);
        return to;
    }

    // Rows of a result to where they belong, and zeros between them.
    void spread(const float* from, std::size_t size, float* to) const {
        std::fill_n(to, total_ * size, 0.0f);
        for (std::size_t i = 0; i < count_; ++i) std::copy_n(from + i * size, size, to + rows_[i] * size);
    }
};

// What is kept from call to call.
struct LayerWorkspace {
    Buffer codes, left, other, scales, result;
    std::vector<std::unique_ptr<Buffer>> workers;
};

IntegerMatmul matmul_of(std::size_t m, std::size_t n, std::size_t k, int threads) {
    IntegerMatmul t{};
    t.batch = 1, t.m = m, t.n = n, t.k = k, t.threads = threads;
    return t;
}

IntegerConvolution convolution_of(const ConvolutionShape& layer, std::size_t batch, Bytes a, Bytes b, float* out,
                                  int threads) {
    IntegerConvolution t{};
    t.layer = layer, t.layer.batch = batch;
    t.a = a, t.b = b, t.out = out, t.threads = threads;
    return t;
}

// Steps times a factor; false if one that is not zero leaves the range of float32.
bool multiply(std::vector<float>& steps, float factor) {
    for (float& step : steps) {
        if (step == 0 || factor == 0) {
            step = 0;
            continue;
        }
        step *= factor;
        if (!is_ordinary(step, kLargest)) return false;
    }
    return true;
}

// Weights of (outputs, taps, channels) as (outputs, channels, taps).
void channels_first(const float* from, std::size_t outputs, std::size_t channels, std::size_t taps, float* to,
                    int threads) {
    const std::size_t size = channels * taps;
    parallel_for(outputs * size, std::max<std::size_t>(size, 1), threads, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row < end; row += size)
            for (std::size_t c = 0; c < channels; ++c)
                for (std::size_t tap = 0; tap < taps; ++tap) to[row + c * taps + tap] = from[row + tap * channels + c];
    });
}

}  // namespace

Outcome layer_output(const LayerShape& s, const OperandRule& of_x, const OperandTensor& x, const Codes& x_codes,
                     const OperandRule& of_weight, const OperandTensor& weight, const Codes& weight_codes,
                     const float* bias, float* y) {
    Rounding first(of_x, x, x_codes), second(of_weight, weight, weight_codes);
    first.round(s.threads), second.round(s.threads);
    first.count(), second.count();
    if (!first.finite() || !second.finite()) return Outcome::kNotFinite;
    std::vector<float> rows, columns = steps_of(weight_codes), x_steps = steps_of(x_codes);
    const Bytes a{x_codes.codes, zero_of(x_codes)}, b{weight_codes.codes, zero_of(weight_codes)};
    const std::size_t inputs = s.layer.channels, outputs = s.layer.outputs;
    bool ordinary;
    if (x_codes.ranges > 1) {
        // The sum is multiplied by the factor of its column first, which must leave room for that of its row.
        const double room = kLargest / (255.0 * 255.0 * static_cast<double>(std::max<std::size_t>(inputs, 1)));
        rows = x_steps;
        ordinary = std::all_of(columns.begin(), columns.end(),
                               [&](float step) { return step == 0 || is_ordinary(step, room); });
    } else {
        ordinary = multiply(columns, x_steps[0]);
    }
    if (!ordinary) return Outcome::kElsewhere;
    if (s.convolves) {
        IntegerConvolution t = convolution_of(s.layer, s.layer.batch, a, b, y, s.threads);
        t.columns = {columns.data(), columns.size()}, t.bias = bias;
        integer_convolution(t);
        return Outcome::kDone;
    }
    IntegerMatmul t = matmul_of(s.layer.batch, outputs, inputs, s.threads);
    t.a = a, t.a_row = inputs, t.a_k = 1;
    t.b = b, t.b_k = 1, t.b_column = inputs;
    t.rows = {rows.empty() ? nullptr : rows.data(), rows.size()}, t.columns = {columns.data(), columns.size()};
    t.bias = bias, t.out = y;
    integer_matmul(t);
    return Outcome::kDone;
}

Outcome layer_input_gradient(const LayerShape& s, const GradientProduct& p) {
    if (!is_finite(p.other)) return Outcome::kElsewhere;
    Borrowed<LayerWorkspace> borrowed(0);
    LayerWorkspace& space = *borrowed;
    auto* codes = space.codes.get<std::uint8_t>(elements(p.g));
    std::vector<float> parameters(2 * (p.rule.range == OperandRule::kFirst ? p.g.batch : 1));
    const Codes own{codes, parameters.data(), parameters.size() / 2};
    Rounding rounding(p.rule, p.g, own);
    float unit;
    if (p.folds) {
        const Fold fold(p.other);
        rounding.round(nullptr, fold.factors.data(), fold.factors.size(), p.g.channels_last ? 1 : p.g.inner, s.threads);
        unit = fold.unit;
    } else {
        rounding.round(s.threads);
        unit = steps_of(p.other)[0];
    }
    std::vector<float> steps = steps_of(own);
    if (rounding.finite() && !multiply(steps, unit)) return Outcome::kElsewhere;
    rounding.count();
    if (!rounding.finite()) return Outcome::kNotFinite;
    const RowsLeft rows(s, p, own);
    const std::size_t outputs = s.layer.outputs, inputs = s.layer.channels;
    const std::size_t size = p.g.channels * (rows.pixels() ? 1 : p.g.inner);
    const std::size_t out_size = inputs * (rows.pixels() ? 1 : s.layer.y.input * s.layer.x.input);
    float* out = rows.all() ? p.out : space.result.get<float>(rows.count() * out_size);
    const Bytes a{rows.of<std::uint8_t>(codes, size, space.left), zero_of(own)}, b{p.other.codes, zero_of(p.other)};
    if (s.convolves && !rows.pixels()) {
        IntegerConvolution t = convolution_of(s.layer, rows.count(), a, b, out, s.threads);
        t.columns = {steps.data(), 1};
        integer_input_gradient(t);
    } else {
        IntegerMatmul t = matmul_of(rows.count(), inputs, outputs, s.threads);
        t.a = a, t.a_row = outputs, t.a_k = 1;
        t.b = b, t.b_k = inputs, t.b_column = 1;
        if (own.ranges > 1) t.rows = {rows.of<float>(steps.data(), 1, space.scales), rows.count()};
        else t.columns = {steps.data(), 1};
        t.out = out;
        integer_matmul(t);
    }
    if (!rows.all()) rows.spread(out, out_size, p.out);
    return Outcome::kDone;
}

Outcome layer_weight_gradient(const LayerShape& s, const GradientProduct& p) {
    if (!is_finite(p.other)) return Outcome::kElsewhere;
    const std::size_t outputs = s.layer.outputs, inputs = s.layer.channels;
    const float middle = static_cast<float>((1 << (p.rule.bits - 1)) - 1);
    // Factors of rows, and of columns: the largest magnitude of a column has the last code, but for a hair.
    std::vector<float> limits{-middle, middle}, columns(outputs), factors;
    float unit = 1;
    if (p.folds) {
        Fold fold(p.other);
        factors = fold.factors, unit = fold.unit;
        limits.resize(2 * factors.size());
        for (std::size_t i = 0; i < factors.size(); ++i) {
            factors[i] = std::max(factors[i], kLeastFactor);
            const float end = (1.0f / factors[i]) * middle;
            limits[i] = -end, limits[factors.size() + i] = end;
        }
    } else {
        unit = steps_of(p.other)[0];
    }
    const std::size_t inner = p.g.channels_last ? 1 : p.g.inner, batch = elements(p.g) / (p.g.channels * inner);
    column_largest(p.g.x, batch, p.g.channels, inner, p.folds ? factors.data() : nullptr, columns.data(), s.threads);
    const float most = static_cast<float>(middle * (1 - (p.folds ? 0x1p-20 : 0x1p-22)));
    for (float& column : columns) {
        if (column == 0) column = 1;
        else if (!std::isnan(column)) column = std::min((1.0f / column) * most, kLargest);
    }
    Borrowed<LayerWorkspace> borrowed(0);
    LayerWorkspace& space = *borrowed;
    auto* codes = space.codes.get<std::uint8_t>(elements(p.g));
    std::vector<float> parameters(2 * (p.folds ? p.g.batch : 1));
    const Codes own{codes, parameters.data(), parameters.size() / 2};
    Rounding rounding(p.rule, p.g, own);
    rounding.round(limits.data(), columns.data(), columns.size(), inner, s.threads);
    std::vector<float> steps(outputs);
    for (std::size_t c = 0; c < outputs; ++c) steps[c] = 1.0f / (p.folds ? columns[c] : parameters[0] * columns[c]);
    const std::vector<float> own_steps = steps;
    if (rounding.finite() && !multiply(steps, unit)) return Outcome::kElsewhere;
    rounding.count();
    if (!rounding.finite()) return Outcome::kNotFinite;
    const RowsLeft rows(s, p, own);
    const std::size_t size = p.g.channels * (rows.pixels() ? 1 : p.g.inner);
    const std::size_t other_size = inputs * (rows.pixels() ? 1 : s.layer.y.input * s.layer.x.input);
    const Bytes a{rows.of<std::uint8_t>(codes, size, space.left), zero_of(own)};
    const Bytes b{rows.of<std::uint8_t>(p.other.codes, other_size, space.other), zero_of(p.other)};
    if (s.convolves && !rows.pixels()) {
        const std::size_t channels = inputs / s.layer.groups, taps = s.layer.y.kernel * s.layer.x.kernel;
        float* out = p.out_last || taps == 1 ? p.out : space.result.get<float>(outputs * channels * taps);
        IntegerConvolution t = convolution_of(s.layer, rows.count(), a, b, out, s.threads);
        t.rows = {steps.data(), outputs};
        integer_weight_gradient(t);
        if (out != p.out) channels_first(out, outputs, channels, taps, p.out, s.threads);
    } else {
        IntegerMatmul t = matmul_of(outputs, inputs, rows.count(), s.threads);
        t.a = a, t.a_row = 1, t.a_k = outputs;
        t.b = b, t.b_k = inputs, t.b_column = 1;
        t.rows = {steps.data(), outputs};
        t.out = p.out;
        integer_matmul(t);
    }
    if (p.d_bias != nullptr) {
        const std::size_t pixels = rows.count() * (rows.pixels() ? 1 : p.g.inner);
        const std::vector<std::uint8_t> ones(pixels, 1);
        IntegerMatmul t = matmul_of(1, outputs, pixels, s.threads);
        t.a = {ones.data(), 0}, t.a_row = pixels, t.a_k = 1;
        t.b = a, t.b_k = outputs, t.b_column = 1;
        t.columns = {own_steps.data(), outputs};
        t.out = p.d_bias;
        integer_matmul(t);
    }
    return Outcome::kDone;
}

}  // namespace lograd
