#include "kernels/rows/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/tensor.h"
#include "isa/table.h"

namespace lograd {
namespace {

// Rows that are read twice are read in blocks of this many elements, so that the second time they come from the cache.
constexpr std::size_t kInCache = 32768;

RowParameters lists(const float* parameters, std::size_t rows, std::size_t columns) {
    return {parameters, parameters + rows, parameters + 2 * rows, parameters + 3 * rows, parameters + 4 * rows,
            columns};
}

// A row without a finite element counts as zero; adding 0 makes -0 equal to 0 in its bits.
void store_range(const Range& range, float* out, std::size_t rows, std::size_t row) {
    const bool none = range.low > range.high;
    out[row] = none ? 0.0f : range.low + 0.0f;
    out[rows + row] = none ? 0.0f : range.high + 0.0f;
    out[2 * rows + row] = range.nan ? 1.0f : 0.0f;
}

constexpr double kLargest = std::numeric_limits<float>::max();

// A range and a little more at either end: `_widened` in ops/affine.py.
struct Widened {
    double low, high;
    Widened(double smallest, double largest) {
        const double more = 1e-8 * (largest - smallest);
        low = smallest - more, high = largest + more;
    }
};

// `_scale` there.
float finite_scale(double steps, double width) {
    return width > 0 ? static_cast<float>(std::min(steps / width, kLargest)) : 1.0f;
}

// `sample_parameters` there.
void sample_parameters(const float* ranges, float* parameters, std::size_t rows, std::size_t row, float bins) {
    const float smallest = ranges[row], largest = ranges[rows + row];
    const Widened range(smallest, largest);
    parameters[row] = finite_scale(bins, std::min(range.high - range.low, 3.4e38));
    parameters[rows + row] = static_cast<float>(range.low);
    parameters[2 * rows + row] = 0.0f;
    parameters[3 * rows + row] = smallest;
    parameters[4 * rows + row] = largest;
}

Matrix one_row(const Matrix& m) { return {m.type, m.x, 1, m.rows * m.columns}; }

float largest_magnitude(const Matrix& row, int threads) {
    float ranges[3];
    row_ranges(row, ranges, threads);
    return std::max(-ranges[0], ranges[1]) + 0.0f;
}

// The piece of a matrix from `begin` to `end`.
RowPiece piece_of(const Matrix& m, const RowRounding& r, const RowParameters& rows, std::size_t begin, std::size_t end,
                  std::size_t ahead) {
    const std::size_t size = bytes(m.type), out_size = r.codes ? 1 : size;
    const Piece piece{m.type,      element(m.x, begin, size), element(r.y, begin, out_size),
                      end - begin, r.key.offset + begin,      r.key.seed};
    return {piece, begin, ahead, rows, r.bins, r.stochastic, r.codes};
}

// Codes or values of all rows, by these parameters.
Counts quantize_rows(const Matrix& m, const RowRounding& r, const float* parameters) {
    const RowParameters rows = lists(parameters, m.rows, m.columns);
    Total total;
    parallel_for(m.rows * m.columns, kGrain, r.threads, [&](std::size_t begin, std::size_t end) {
        Counts own{true};
        kernels().rows.quantize(piece_of(m, r, rows, begin, end, 0), own);
        total.add(own);
    });
    return total.get();
}

}  // namespace

void row_ranges(const Matrix& m, float* out, int threads) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const auto* x = static_cast<const char*>(m.x);
    const std::size_t size = bytes(m.type), rows = m.rows, columns = m.columns;
    for (std::size_t row = 0; row < rows; ++row) store_range({kInfinity, -kInfinity, false}, out, rows, row);
    if (columns == 0) return;
    // A long row may be cut; its parts meet here.
    std::mutex mutex;
    std::vector<std::pair<std::size_t, Range>> cut;
    parallel_for(rows * columns, kGrain, threads, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin / columns; begin < end; ++row) {
            const std::size_t stop = std::min(end, (row + 1) * columns);
            Range range;
            kernels().rows.range(m.type, x + begin * size, stop - begin, range);
            if (stop - begin == columns) {
                store_range(range, out, rows, row);
            } else {
                std::lock_guard<std::mutex> lock(mutex);
                cut.push_back({row, range});
            }
            begin = stop;
        }
    });
    for (const auto& [row, unused] : cut) {
        (void)unused;
        Range whole{kInfinity, -kInfinity, false};
        for (const auto& [other, part] : cut) {
            if (other != row) continue;
            whole = {std::min(whole.low, part.low), std::max(whole.high, part.high), whole.nan || part.nan};
        }
        store_range(whole, out, rows, row);
    }
}

void largest_and_scale(const Matrix& m, float top, float* out, int threads) {
    const float largest = largest_magnitude(one_row(m), threads);
    out[0] = largest;
    out[1] = largest > 0 ? std::min(top / largest, std::numeric_limits<float>::max()) : 1.0f;
    // A subnormal scale has few digits; rounded down, it would make top / scale infinite.
    if (!(top / out[1] <= std::numeric_limits<float>::max())) out[1] = std::nextafter(out[1], 1.0f);
}

Counts quantize_samples(const Matrix& m, const RowRounding& r, float* ranges, float* parameters) {
    const bool few = m.rows < 4 * static_cast<std::size_t>(std::max(r.threads, 1)) && r.threads > 1;
    if (m.columns == 0 || m.columns > 2 * kInCache || few) {
        row_ranges(m, ranges, r.threads);
        for (std::size_t row = 0; row < m.rows; ++row) sample_parameters(ranges, parameters, m.rows, row, r.bins);
        return quantize_rows(m, r, parameters);
    }
    const RowParameters rows = lists(parameters, m.rows, m.columns);
    const std::size_t step = std::max<std::size_t>(1, kInCache / m.columns) * m.columns;
    Total total;
    parallel_for(m.rows * m.columns, m.columns, r.threads, [&](std::size_t begin, std::size_t end) {
        Counts own{true};
        for (; begin < end; begin += step) {
            const std::size_t stop = std::min(end, begin + step);
            for (std::size_t at = begin; at < stop; at += m.columns) {
                Range range;
                kernels().rows.range(m.type, element(m.x, at, bytes(m.type)), m.columns, range);
                store_range(range, ranges, m.rows, at / m.columns);
                sample_parameters(ranges, parameters, m.rows, at / m.columns, r.bins);
            }
            // The next block arrives while random numbers are made for this one.
            kernels().rows.quantize(piece_of(m, r, rows, begin, stop, stop - begin), own);
        }
        total.add(own);
    });
    return total.get();
}

Counts quantize_tensor(const Matrix& m, const RowRounding& r, float* ranges, float* parameters) {
    const Matrix whole = one_row(m);
    row_ranges(whole, ranges, r.threads);
    const Widened range(std::min<double>(ranges[0], 0.0), std::max<double>(ranges[1], 0.0));
    const float bins = r.bins;
    const double width = range.high - range.low, above = ranges[0] < 0 ? 1.0 : 0.0;
    const double zero = width > 0 ? std::min(std::floor(-range.low * (bins / width)), bins - 1.0) : 0.0;
    const float scale = zero > 0 ? finite_scale(zero, -range.low) : finite_scale(bins - above, range.high);
    const double code = zero > 0 ? zero : above;
    parameters[0] = std::max(scale, static_cast<float>((bins - code) / 3.4e38));
    parameters[1] = 0.0f;
    parameters[2] = static_cast<float>(code);
    parameters[3] = ranges[0], parameters[4] = ranges[1];
    return quantize_rows(whole, r, parameters);
}

Counts quantize_interval(const Matrix& m, const RowRounding& r, double gamma, double* statistics, float* parameters) {
    const Matrix whole = one_row(m);
    const float largest = largest_magnitude(whole, r.threads), clip = static_cast<float>(gamma * largest);
    const float levels = r.bins / 2;
    parameters[0] = finite_scale(levels, clip);
    parameters[1] = 0.0f;
    parameters[2] = levels;
    parameters[3] = -clip, parameters[4] = clip;
    const Counts counts = quantize_rows(whole, r, parameters);
    statistics[0] = largest;
    statistics[1] = static_cast<double>(counts.clipped) / std::max<double>(1.0, static_cast<double>(whole.columns));
    return counts;
}

void dequantize_rows(const Matrix& m, void* y, const float* parameters, float bins, int threads) {
    // Nothing is clipped here: the bounds are read, and not used.
    const RowParameters rows{parameters, parameters + m.rows, parameters + 2 * m.rows,
                             parameters, parameters,          m.columns};
    parallel_for(m.rows * m.columns, kGrain, threads, [&](std::size_t begin, std::size_t end) {
        const Piece piece{m.type, element(m.x, begin, 1), element(y, begin, bytes(m.type)), end - begin, 0, 0};
        kernels().rows.dequantize({piece, begin, 0, rows, bins, false, true});
    });
}

Counts reflect_rows(const Reflection& r, int threads) {
    // Columns are independent, rows are not.
    std::size_t width = 1024;
    while (width > 32 && width * static_cast<std::size_t>(std::max(threads, 1)) > r.columns) width /= 2;
    Total total;
    parallel_for(r.rows * r.columns, r.rows * width, threads, [&](std::size_t begin, std::size_t end) {
        Counts own{true};
        kernels().rows.reflect(r, begin / r.rows, end / r.rows, own);
        total.add(own);
    });
    return total.get();
}

}  // namespace lograd
