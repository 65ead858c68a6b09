// BatchNorm in training: statistics of channels, and passes that normalise, add, rectify and go backward.  Sums are taken in
// double, in an order that neither threads nor instruction sets change; ops/normalization.py has it.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lograd {

// A tensor of images with channels, whose places lie in planes, or channels side by side (`last`).
struct Planes {
    std::size_t images, channels, places;
    bool last;
    int threads;
};

// Mean, variance (biased) and inverse standard deviation of each channel.
void batch_statistics(const Planes&, const float* x, double epsilon, float* mean, float* variance, float* inverse);

struct BatchNormalize {
    const float *x, *mean, *inverse, *weight, *bias, *residual;  // the last three may be null
    float* y;
    std::uint8_t* mask;  // null without a ReLU; else a bit for each element of y, one where its gradient passes
};
void batch_normalize(const Planes&, const BatchNormalize&);

struct BatchNormalizeBackward {
    const float *g, *x, *mean, *inverse, *weight;  // weight may be null
    const std::uint8_t* mask;                      // null without a ReLU
    float *d_x, *d_weight, *d_bias, *masked;       // masked may be null; else it takes g where the mask passes it
};
void batch_normalize_backward(const Planes&, const BatchNormalizeBackward&);

// Bits of a mask are loaded in words of four bytes from any byte on, so that it has so many bytes more than bits ask for.
constexpr std::size_t kMaskTail = 3;

// The sums of a, and of products a b: of x and x for statistics, of g and x for gradients.
struct ProductSums {
    const float *a, *b;
    const std::uint8_t* mask;  // where a counts; null if everywhere
    std::size_t bit;           // of the mask, for the first element
    float* masked;             // null, or takes the elements of a that count
};

// What is done to each element: the vectors of channels are tables that go on behind their end from the beginning, or lists
// of one element (`alone`).
struct ChannelTables {
    const float *mean, *first, *second;
    std::size_t period, phase;
    bool alone, past_cache;  // a large result is written past the cache
};

// Bits that are not yet a byte.
struct BitWriter {
    std::uint8_t* to;
    std::uint64_t word;
    unsigned held;
};

// The kernels of one instruction set.
struct NormalizationKernels {
    // Over rows of channels; sums has the first sum of each channel, then the second.
    void (*row_sums)(const ProductSums&, std::size_t rows, std::size_t channels, double* lanes, double* sums);
    // Over one plane; the sum of a, and that of products.
    void (*plane_sums)(const ProductSums&, std::size_t places, double* sums);
    // y = (x - mean) first + second, plus the residual, rectified.
    void (*normalize)(const ChannelTables&, const float* x, const float* residual, float* y, std::size_t count,
                      BitWriter* mask);
    // dx = ((g - second) - (x - mean) factor) first, with g where the mask passes it.
    void (*input_gradient)(const ChannelTables&, const float* factor, const ProductSums&, float* d_x,
                           std::size_t count);
};

}  // namespace lograd
