#include "kernels/normalization/normalization.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "isa/table.h"

namespace lograd {
namespace {

// Places whose sums are one number of the sum over all.
constexpr std::size_t kPiece = 1024;
// Vectors that begin in a table may read so many elements behind its end.
constexpr std::size_t kTableTail = 16;
// Elements that one thread takes at a time; whole bytes of a mask, and whole cache lines.
constexpr std::size_t kTogether = 4096;

// Past the cache, no line of the result is fetched before it is written.
bool past_cache(const Planes& t) { return t.images * t.channels * t.places * sizeof(float) >= std::size_t{4} << 20; }

// Both sums of each channel, over all pieces in turn.
std::vector<double> all_sums(const Planes& t, const ProductSums& all) {
    const std::size_t pieces = (t.places + kPiece - 1) / kPiece, chunks = t.images * pieces, both = 2 * t.channels;
    std::vector<double> parts(chunks * both), total(both, 0.0);
    const auto part_of = [&](std::size_t at) {
        return ProductSums{all.a + at, all.b + at, all.mask, at, all.masked == nullptr ? nullptr : all.masked + at};
    };
    const auto length = [&](std::size_t piece) { return std::min(kPiece, t.places - piece * kPiece); };
    const int threads = t.images * t.places * t.channels < 65536 ? 1 : t.threads;
    if (t.last) {
        std::vector<std::vector<double>> lanes(static_cast<std::size_t>(std::max(threads, 1)));
        parallel_tasks(chunks, threads, [&](std::size_t worker, std::size_t chunk) {
            lanes[worker].resize(8 * t.channels);
            const std::size_t row = chunk / pieces * t.places + chunk % pieces * kPiece;
            kernels().normalization.row_sums(part_of(row * t.channels), length(chunk % pieces), t.channels,
                                             lanes[worker].data(), parts.data() + chunk * both);
        });
    } else {
        const auto plane = [&](std::size_t image, std::size_t channel) {
            for (std::size_t piece = 0; piece < pieces; ++piece) {
                double sums[2];
                kernels().normalization.plane_sums(part_of((image * t.channels + channel) * t.places + piece * kPiece),
                                                   length(piece), sums);
                double* part = parts.data() + (image * pieces + piece) * both + channel;
                part[0] = sums[0], part[t.channels] = sums[1];
            }
        };
        parallel_tasks(t.images, threads, [&](std::size_t, std::size_t image) {
            for (std::size_t channel = 0; channel < t.channels; ++channel) plane(image, channel);
        });
    }
    for (std::size_t chunk = 0; chunk < chunks; ++chunk)
        for (std::size_t k = 0; k < both; ++k) total[k] += parts[chunk * both + k];
    return total;
}

// Vectors of channels, repeated until a vector of places finds its channels from any phase on.
class Tables {
    std::vector<float> data_;
    std::size_t size_;

public:
    const std::size_t period;

    Tables(const Planes& t, std::size_t count)
        : size_(0), period(t.channels * ((kTableTail + t.channels - 1) / t.channels)) {
        size_ = period + kTableTail;
        data_.resize(count * size_);
    }
    template <class Value> void set(std::size_t which, std::size_t channels, Value value) {
        float* to = data_.data() + which * size_;
        for (std::size_t c = 0; c < channels; ++c) to[c] = value(c);
        for (std::size_t k = channels; k < size_; ++k) to[k] = to[k - channels];
    }
    const float* get(std::size_t which) const { return data_.data() + which * size_; }
};

// Calls run(begin, count, phase, alone) over pieces of memory; with `alone` the phase is that of the only channel.
template <class Begin, class Run> void over_memory(const Planes& t, std::size_t period, Begin begin_piece, Run run) {
    parallel_for(t.images * t.channels * t.places, kTogether, t.threads, [&](std::size_t begin, std::size_t end) {
        auto state = begin_piece(begin);
        if (t.last) {
            run(state, begin, end - begin, begin % period, false);
        } else {
            for (std::size_t at = begin; at < end;) {
                const std::size_t plane = at / t.places, next = std::min(end, (plane + 1) * t.places);
                run(state, at, next - at, plane % t.channels, true);
                at = next;
            }
        }
    });
}

}  // namespace

void batch_statistics(const Planes& t, const float* x, double epsilon, float* mean, float* variance, float* inverse) {
    const std::vector<double> sums = all_sums(t, {x, x, nullptr, 0, nullptr});
    const double count = static_cast<double>(t.images * t.places);
    for (std::size_t c = 0; c < t.channels; ++c) {
        const double middle = sums[c] / count, spread = sums[t.channels + c] / count - middle * middle;
        const double found = spread < 0.0 ? 0.0 : spread;
        mean[c] = static_cast<float>(middle);
        variance[c] = static_cast<float>(found);
        inverse[c] = static_cast<float>(1.0 / std::sqrt(found + epsilon));
    }
}

void batch_normalize(const Planes& t, const BatchNormalize& n) {
    Tables tables(t, 3);
    tables.set(0, t.channels, [&](std::size_t c) { return n.mean[c]; });
    tables.set(1, t.channels, [&](std::size_t c) { return n.weight ? n.inverse[c] * n.weight[c] : n.inverse[c]; });
    tables.set(2, t.channels, [&](std::size_t c) { return n.bias ? n.bias[c] : 0.0f; });
    const std::size_t count = t.images * t.channels * t.places;
    if (n.mask != nullptr) std::fill_n(n.mask + count / 8, (count % 8 != 0) + kMaskTail, std::uint8_t{0});
    const auto begin_piece = [&](std::size_t begin) {
        return BitWriter{n.mask == nullptr ? nullptr : n.mask + begin / 8, 0, 0};
    };
    over_memory(t, tables.period, begin_piece,
                [&](BitWriter& bits, std::size_t at, std::size_t size, std::size_t phase, bool alone) {
        const std::size_t first = alone ? phase : 0;
        const ChannelTables own{
            tables.get(0) + first, tables.get(1) + first, tables.get(2) + first, tables.period, phase, alone,
            past_cache(t)};
        kernels().normalization.normalize(own, n.x + at, n.residual == nullptr ? nullptr : n.residual + at, n.y + at,
                                          size, n.mask == nullptr ? nullptr : &bits);
        // The last bits of all are no whole byte.
        if (n.mask != nullptr && at + size == count && bits.held != 0) *bits.to = static_cast<std::uint8_t>(bits.word);
    });
}

void batch_normalize_backward(const Planes& t, const BatchNormalizeBackward& n) {
    const std::vector<double> sums = all_sums(t, {n.g, n.x, n.mask, 0, n.masked});
    const double count = static_cast<double>(t.images * t.places);
    std::vector<float> slope(t.channels), middle(t.channels);
    for (std::size_t c = 0; c < t.channels; ++c) {
        const double inverse = n.inverse[c], product = sums[t.channels + c] - n.mean[c] * sums[c];
        n.d_bias[c] = static_cast<float>(sums[c]);
        n.d_weight[c] = static_cast<float>(product * inverse);
        middle[c] = static_cast<float>(sums[c] / count);
        slope[c] = static_cast<float>(product * inverse * inverse / count);
    }
    Tables tables(t, 4);
    tables.set(0, t.channels, [&](std::size_t c) { return n.mean[c]; });
    tables.set(1, t.channels, [&](std::size_t c) { return n.weight ? n.inverse[c] * n.weight[c] : n.inverse[c]; });
    tables.set(2, t.channels, [&](std::size_t c) { return middle[c]; });
    tables.set(3, t.channels, [&](std::size_t c) { return slope[c]; });
    // Once the mask is in the gradient it is not needed again.
    const float* g = n.masked != nullptr ? n.masked : n.g;
    const std::uint8_t* mask = n.masked != nullptr ? nullptr : n.mask;
    over_memory(t, tables.period, [](std::size_t) { return 0; },
                [&](int, std::size_t at, std::size_t size, std::size_t phase, bool alone) {
        const std::size_t first = alone ? phase : 0;
        const ChannelTables own{
            tables.get(0) + first, tables.get(1) + first, tables.get(2) + first, tables.period, phase, alone,
            past_cache(t)};
        kernels().normalization.input_gradient(own, tables.get(3) + first, {g + at, n.x + at, mask, at, nullptr},
                                               n.d_x + at, size);
    });
}

}  // namespace lograd
