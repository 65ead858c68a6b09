// Blocks that share a scale, compiled once per instruction set; equal to ops/blocks.py bit for bit.
//
// A chunk holds as many whole blocks as fit.  A block that is larger than a chunk is read twice: for its maximum, then to
// be rounded.

#pragma once

#include "packed.h"

namespace lograd {
namespace LOGRAD_ISA {

constexpr std::uint32_t kInfinity = 0x7f800000u;

inline std::size_t up_to_vector(std::size_t n) { return (n + W - 1) / W * W; }

// Bits of the largest magnitude: ordered as the magnitudes are, with infinity and NaN on top.
inline std::uint32_t largest_bits(const float* x, std::size_t n) {
    I most{};
    std::size_t i = 0;
    for (; i + W <= n; i += W) {
        const I m = bits<I>(bits<U>(load<F>(x + i)) & 0x7fffffffu);
        most = m > most ? m : most;
    }
    std::int32_t all = 0;
    for (std::size_t lane = 0; lane < W; ++lane) all = most[lane] > all ? most[lane] : all;
    for (; i < n; ++i) {
        std::int32_t m;
        std::memcpy(&m, x + i, 4);
        m &= 0x7fffffff;
        all = m > all ? m : all;
    }
    return static_cast<std::uint32_t>(all);
}

inline int floor_log2(std::uint32_t magnitude_bits) {
    if (magnitude_bits >> 23) return static_cast<int>(magnitude_bits >> 23) - 127;
    return -118 - __builtin_clz(magnitude_bits);  // subnormal: a whole number of 2^-149
}

// The code of the scale of a block.
inline int scale_code(const BlockCoding& coding, std::uint32_t largest) {
    if (largest >= kInfinity) return coding.scale.nan;
    if (coding.power_of_two) {
        int e = largest ? floor_log2(largest) - coding.element_emax : coding.scale_emin;
        e = e < coding.scale_emin ? coding.scale_emin : e > coding.scale_emax ? coding.scale_emax : e;
        return e - coding.scale_emin;
    }
    float ideal;
    std::memcpy(&ideal, &largest, 4);
    ideal /= coding.element.grid.largest;
    const Grid& grid = coding.scale.grid;
    if (!(ideal < grid.largest)) return coding.scale.largest;
    std::uint32_t word;
    std::memcpy(&word, &ideal, 4);
    int exponent = static_cast<int>(word >> 23) - 127;
    if (exponent < grid.smallest_exponent) exponent = grid.smallest_exponent;
    const float steps = (ideal * power_of_two(grid.mantissa - exponent) + 0x1p23f) - 0x1p23f;
    const int code = ((exponent - grid.smallest_exponent) << grid.mantissa) + static_cast<int>(steps);
    return code < coding.scale.largest ? code : coding.scale.largest;
}

// scale * value * tensor_scale, the 3/4 undone; finite unless the scale is NaN.
inline F restore(F value, F scale, float tensor_scale, float largest, bool unbiased) {
    if (unbiased) value = value / 0.75f;
    const F y = value * scale * tensor_scale, m = magnitude(y);
    const F bounded = smaller(m, F{} + largest);
    return select(y == y, bits<F>(bits<U>(bounded) | sign(y)), F{} + __builtin_nanf(""));
}

template <bool Stochastic, bool Codes, class T> class BlockRounder {
    const Blocks& task_;
    const BlockCoding& coding_ = *task_.coding;
    const T* x_ = static_cast<const T*>(task_.x);
    const Upper16 upper16_{task_.seed};
    I zeros_{}, nans_{}, clipped_{};
    std::size_t padding_ = 0;
    alignas(64) float in_[kChunk], scale_[kChunk], out_[kChunk];
    alignas(64) std::uint16_t random_[2 * kChunk] = {};

    void read(std::size_t at, std::size_t count) {
        widen(x_ + at, in_, count);
        if (count < kChunk) std::memset(in_ + count, 0, (kChunk - count) * sizeof(float));
        if (task_.tensor_scale != 1.0f)
            for (std::size_t j = 0; j < kChunk; j += W) store(in_ + j, load<F>(in_ + j) / task_.tensor_scale);
    }

    float scale_of(std::uint32_t largest, std::size_t block) const {
        const int code = scale_code(coding_, largest);
        if (Codes) task_.scales[block] = static_cast<std::uint8_t>(code);
        return coding_.scale.values[code];
    }

    void fill(std::size_t from, std::size_t to, float scale) {
        for (std::size_t i = from; i < to; ++i) scale_[i] = scale;
    }

    // Rounds the chunk that was read, each element with its entry of scale_.
    void round(std::size_t at, std::size_t count) {
        const std::uint64_t index = task_.offset + at;
        const std::uint16_t* random = random_ + index % 8;
        if (Stochastic) {
            upper16_(index / 8, random_);
            if (index % 8 + count > kChunk) upper16_(index / 8 + kChunk / 8, random_ + kChunk);
        }
        const OnGrid<Stochastic> grid(coding_.element);
        const F shrink = F{} + (task_.unbiased ? 0.75f : 1.0f);
        const float tensor_scale = task_.tensor_scale, largest = task_.largest;
        const bool unbiased = task_.unbiased;
        const float* __restrict in = in_;
        const float* __restrict scales = scale_;
        float* __restrict out = out_;
        I zeros{}, nans{}, clipped{};
        for (std::size_t j = 0; j < count; j += W) {
            const F scale = load<F>(scales + j);
            const F y = bits<F>(bits<I>(load<F>(in + j) / scale) & (scale != 0.0f)) * shrink;
            const Rounded rounded = grid.round(y, random + j, index + j, task_.seed);
            const I known = scale == scale;
            nans -= ~known;
            clipped -= magnitude(y) > rounded.limit;
            if (Codes) {
                const I code = grid.code(rounded) & known;
                zeros -= known & grid.is_zero(code);
                store(out + j, __builtin_convertvector(code, F));
            } else {
                const F result = restore(grid.value(rounded), scale, tensor_scale, largest, unbiased);
                zeros -= result == 0.0f;
                store(out + j, result);
            }
        }
        zeros_ += zeros, nans_ += nans, clipped_ += clipped;
        padding_ += up_to_vector(count) - count;
        if (Codes) narrow(out_, reinterpret_cast<Code*>(task_.codes) + at, count);
        else if (count == kChunk) write(out_, static_cast<T*>(task_.y) + at, task_.past_cache);
        else narrow(out_, static_cast<T*>(task_.y) + at, count);
    }

    void round_small(std::size_t begin, std::size_t end, std::size_t block) {
        const std::size_t count = end - begin, size = coding_.size;
        read(begin, count);
        for (std::size_t from = 0; from < count; from += size, ++block) {
            const std::size_t to = from + size < count ? from + size : count;
            fill(from, to, scale_of(largest_bits(in_ + from, to - from), block));
        }
        fill(count, up_to_vector(count), 1.0f);
        round(begin, count);
    }

    void round_large(std::size_t begin, std::size_t end, std::size_t block) {
        std::uint32_t largest = 0;
        const auto chunks = [&](auto body) {
            for (std::size_t at = begin; at < end; at += kChunk) {
                const std::size_t count = end - at < kChunk ? end - at : kChunk;
                read(at, count);
                body(at, count);
            }
        };
        chunks([&](std::size_t, std::size_t count) {
            const std::uint32_t own = largest_bits(in_, count);
            largest = own > largest ? own : largest;
        });
        const float scale = scale_of(largest, block);
        chunks([&](std::size_t at, std::size_t count) {
            fill(0, count, scale);
            fill(count, up_to_vector(count), 1.0f);
            round(at, count);
        });
    }

public:
    explicit BlockRounder(const Blocks& task) : task_(task) {}

    void run(std::size_t first, std::size_t last, Counts& counts) {
        const std::size_t size = coding_.size, per_row = task_.per_row();
        const std::size_t at_once = size <= kChunk ? kChunk / size : 1;
        while (first < last) {
            const std::size_t row = first / per_row, within = first % per_row;
            std::size_t n = at_once;
            if (n > last - first) n = last - first;
            if (n > per_row - within) n = per_row - within;
            const std::size_t begin = row * task_.columns + within * size;
            const std::size_t end = within + n == per_row ? (row + 1) * task_.columns : begin + n * size;
            size <= kChunk ? round_small(begin, end, first) : round_large(begin, end, first);
            first += n;
        }
        add_lanes(zeros_, nans_, clipped_, padding_, counts);
    }
};

inline void quantize_blocks(const Blocks& task, std::size_t first, std::size_t last, Counts& counts) {
    with_type(task.type, [&](auto* null) {
        using T = std::remove_pointer_t<decltype(null)>;
        const bool codes = task.y == nullptr;
        if (task.stochastic && codes) BlockRounder<true, true, T>(task).run(first, last, counts);
        else if (task.stochastic) BlockRounder<true, false, T>(task).run(first, last, counts);
        else if (codes) BlockRounder<false, true, T>(task).run(first, last, counts);
        else BlockRounder<false, false, T>(task).run(first, last, counts);
    });
}

inline void dequantize_blocks(const Blocks& task, std::size_t first, std::size_t last) {
    const BlockCoding& coding = *task.coding;
    const std::size_t size = coding.size, per_row = task.per_row();
    with_type(task.type, [&](auto* null) {
        auto* y = static_cast<decltype(null)>(task.y);
        alignas(64) float out[kChunk] = {};
        for (; first < last; ++first) {
            const std::size_t row = first / per_row, within = first % per_row;
            const std::size_t begin = row * task.columns + within * size;
            const std::size_t end = within + 1 == per_row ? (row + 1) * task.columns : begin + size;
            const F scale = F{} + coding.scale.values[task.scales[first]];
            for (std::size_t at = begin; at < end; at += kChunk) {
                const std::size_t count = end - at < kChunk ? end - at : kChunk;
                for (std::size_t i = 0; i < count; ++i) out[i] = coding.element.values[task.codes[at + i]];
                for (std::size_t j = 0; j < count; j += W)
                    store(out + j, restore(load<F>(out + j), scale, task.tensor_scale, task.largest, task.unbiased));
                narrow(out, y + at, count);
            }
        }
    });
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
