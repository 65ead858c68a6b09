// Products of small integers.

#include "kernels/integer/integer.h"

#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>

#include "bind/bind.h"
#include "isa/table.h"

namespace lograd {
namespace {

using A = Address;
using N = Size;

Bytes bytes_at(A data, int zero) { return {at<const std::uint8_t>(data), zero}; }
Scales scales_at(A values, N count) { return {at<const float>(values), count}; }

void matmul(N batch, N m, N n, N k, A a, std::array<N, 3> a_strides, int a_zero, A b, std::array<N, 3> b_strides,
            int b_zero, A rows, N rows_count, A columns, N columns_count, A bias, A out, int threads) {
    IntegerMatmul t{};
    t.batch = batch, t.m = m, t.n = n, t.k = k;
    t.a = bytes_at(a, a_zero), t.a_batch = a_strides[0], t.a_row = a_strides[1], t.a_k = a_strides[2];
    t.b = bytes_at(b, b_zero), t.b_batch = b_strides[0], t.b_k = b_strides[1], t.b_column = b_strides[2];
    t.rows = scales_at(rows, rows_count), t.columns = scales_at(columns, columns_count);
    t.bias = at<const float>(bias);
    t.out = at<float>(out);
    t.threads = threads;
    integer_matmul(t);
}

using Geometry = std::array<N, 6>;

IntegerConvolution convolution(N batch, N channels, N outputs, N groups, Geometry y, Geometry x, Bytes a, Bytes b,
                               A out, int threads) {
    IntegerConvolution t{};
    t.layer = {batch, channels, outputs, groups, axis(y), axis(x)};
    t.a = a, t.b = b;
    t.out = at<float>(out);
    t.threads = threads;
    return t;
}

void output(N batch, N channels, N outputs, N groups, Geometry y, Geometry x, A input, int input_zero, A weight,
            int weight_zero, A columns, N columns_count, A bias, A out, int threads) {
    IntegerConvolution t = convolution(batch, channels, outputs, groups, y, x, bytes_at(input, input_zero),
                                       bytes_at(weight, weight_zero), out, threads);
    t.columns = scales_at(columns, columns_count);
    t.bias = at<const float>(bias);
    integer_convolution(t);
}

void input_gradient(N batch, N channels, N outputs, N groups, Geometry y, Geometry x, A g, int g_zero, A weight,
                    int weight_zero, A columns, N columns_count, A out, int threads) {
    IntegerConvolution t = convolution(batch, channels, outputs, groups, y, x, bytes_at(g, g_zero),
                                       bytes_at(weight, weight_zero), out, threads);
    t.columns = scales_at(columns, columns_count);
    integer_input_gradient(t);
}

void weight_gradient(N batch, N channels, N outputs, N groups, Geometry y, Geometry x, A g, int g_zero, A input,
                     int input_zero, A rows, N rows_count, A out, int threads) {
    IntegerConvolution t = convolution(batch, channels, outputs, groups, y, x, bytes_at(g, g_zero),
                                       bytes_at(input, input_zero), out, threads);
    t.rows = scales_at(rows, rows_count);
    integer_weight_gradient(t);
}

void block_matmul(N m, N n, N k, N block, A a, int a_zero, A a_scales, A b, int b_zero, A b_scales, float scale, A bias,
                  A out, int threads) {
    integer_block_matmul({m, n, k, block, bytes_at(a, a_zero), at<const float>(a_scales), bytes_at(b, b_zero),
                          at<const float>(b_scales), scale, at<const float>(bias), at<float>(out), threads});
}

// One tile of bytes by the micro-kernel in use and by its twin; rows and columns of a tile, 0 where there is none.
// Segments are (a, b, units, flush) each.
std::array<N, 2> byte_tiles(A a, N a_row, A panel, A segments, N count, std::ptrdiff_t a_step, std::ptrdiff_t b_step,
                            bool add, A sums, A twin) {
    const IntegerKernels& table = kernels().integer;
    if (table.bytes.tile == nullptr) return {0, 0};
    const std::uint8_t* rows[kMaxMR];
    for (N r = 0; r < kMaxMR; ++r) rows[r] = at<const std::uint8_t>(a) + std::min(r, table.mr - 1) * a_row;
    Tile tile{rows, at<const std::uint8_t>(panel), at<const Segment>(segments), count, a_step, b_step, nullptr, add};
    tile.sums = at<std::int32_t>(sums);
    table.bytes.tile(tile);
    tile.sums = at<std::int32_t>(twin);
    table.bytes.twin(tile);
    return {table.mr, table.nr};
}

}  // namespace

void bind_integer(Functions& functions) {
    functions.named("integer_matmul", &matmul, "batch", "m", "n", "k", "a", "a_strides", "a_zero", "b", "b_strides",
                    "b_zero", "rows", "rows_count", "columns", "columns_count", "bias", "out", "threads");
    functions.named("integer_convolution", &output, "batch", "channels", "outputs", "groups", "y", "x", "input",
                    "input_zero", "weight", "weight_zero", "columns", "columns_count", "bias", "out", "threads");
    functions.named("integer_convolution_input_gradient", &input_gradient, "batch", "channels", "outputs", "groups",
                    "y", "x", "g", "g_zero", "weight", "weight_zero", "columns", "columns_count", "out", "threads");
    functions.named("integer_convolution_weight_gradient", &weight_gradient, "batch", "channels", "outputs", "groups",
                    "y", "x", "g", "g_zero", "input", "input_zero", "rows", "rows_count", "out", "threads");
    functions.named("integer_block_matmul", &block_matmul, "m", "n", "k", "block", "a", "a_zero", "a_scales", "b",
                    "b_zero", "b_scales", "scale", "bias", "out", "threads");
    functions.kernel("look_up", [](A from, A to, N count, A table, int threads) {
        look_up(at<const std::uint8_t>(from), at<std::uint8_t>(to), count, at<const std::uint8_t>(table), threads);
    });
    functions.other("integer_byte_tiles", &byte_tiles);
}

}  // namespace lograd
