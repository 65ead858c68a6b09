// Blocks that share a scale, for one instruction set.
//
// A chunk holds as many whole blocks as fit.  A block that is larger than a chunk is read twice: for its maximum, then to
// be rounded.

#pragma once

#include "kernels/blocks/blocks.h"
#include "kernels/codes/codes.isa.h"

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

// Codes of the scales of n blocks, given the bits of their largest magnitudes.  Reads and writes whole vectors.
inline void scale_codes(const BlockCoding& coding, const std::uint32_t* largest, std::size_t n, std::int32_t* codes) {
    if (coding.power_of_two) {
        for (std::size_t k = 0; k < n; ++k) {
            int e = largest[k] ? floor_log2(largest[k]) - coding.element_emax : coding.scale_emin;
            e = e < coding.scale_emin ? coding.scale_emin : e > coding.scale_emax ? coding.scale_emax : e;
            codes[k] = e - coding.scale_emin;
        }
    } else {
        Nearest nearest;
        const OnGrid<Nearest> grid(coding.scale.grid);
        const Coder coder(coding.scale);
        for (std::size_t k = 0; k < n; k += W) {
            const F ideal = load<F>(largest + k) / coding.element.grid.largest;
            store(codes + k, coder.code(grid.round(ideal, nearest, {}), ideal));
        }
    }
    for (std::size_t k = 0; k < n; ++k)
        if (largest[k] >= kInfinity) codes[k] = coding.scale.nan;
}

// scale * value * tensor_scale, the 3/4 undone; finite unless the scale is NaN.
inline F restore(F value, F scale, float tensor_scale, float largest, bool unbiased) {
    if (unbiased) value = value / 0.75f;
    const F y = value * scale * tensor_scale, m = magnitude(y);
    const F bounded = smaller(m, F{} + largest);
    return select(y == y, bits<F>(bits<U>(bounded) | sign(y)), F{} + __builtin_nanf(""));
}

inline std::size_t blocks_per_row(const Blocks& task) {
    return (task.columns + task.coding->size - 1) / task.coding->size;
}

template <bool Stochastic, bool Codes, class T> class BlockRounder {
    const Blocks& task_;
    const BlockCoding& coding_ = *task_.coding;
    const T* x_ = static_cast<const T*>(task_.x);
    const std::size_t per_row_ = blocks_per_row(task_);
    const Upper16 upper16_{task_.key.seed};
    LaneCounts counts_;
    std::size_t padding_ = 0;
    alignas(64) float in_[kChunk], scale_[kChunk], out_[kChunk];
    alignas(64) std::uint32_t largest_[kChunk] = {};
    alignas(64) std::int32_t codes_[kChunk];
    alignas(64) std::uint16_t random_[2 * kChunk] = {};

    void read(std::size_t at, std::size_t count) {
        widen(x_ + at, in_, count);
        if (count < kChunk) std::memset(in_ + count, 0, (kChunk - count) * sizeof(float));
        if (task_.tensor_scale != 1.0f)
            for (std::size_t j = 0; j < kChunk; j += W) store(in_ + j, load<F>(in_ + j) / task_.tensor_scale);
    }

    // Codes of the scales of n blocks whose largest_ are known.
    void choose_scales(std::size_t block, std::size_t n) {
        scale_codes(coding_, largest_, n, codes_);
        if (!Codes) return;
        for (std::size_t k = 0; k < n; ++k) task_.scales[block + k] = static_cast<std::uint8_t>(codes_[k]);
    }
    float scale_of(std::size_t k) const { return coding_.scale.values[codes_[k]]; }

    void fill(std::size_t from, std::size_t to, float scale) {
        for (std::size_t i = from; i < to; ++i) scale_[i] = scale;
    }

    // Rounds the chunk that was read, each element with its entry of scale_, into out_.
    template <class Rule> LaneCounts round_by(Rule& rule, std::size_t count, const Draw& draw) {
        const OnGrid<Rule> grid(coding_.element.grid);
        const Coder coder(coding_.element);
        // Adding -0.0 changes nothing; adding 0.0 turns -0.0 into 0.0, for formats without a negative zero.
        const F zero = bits<F>(U{} + (coding_.element.negative_zero ? 0x80000000u : 0u));
        const F shrink = F{} + (task_.unbiased ? 0.75f : 1.0f);
        const float tensor_scale = task_.tensor_scale, largest = task_.largest;
        const bool unbiased = task_.unbiased;
        const float* __restrict in = in_;
        const float* __restrict scales = scale_;
        float* __restrict out = out_;
        LaneCounts own;
        for (std::size_t j = 0; j < count; j += W) {
            const F scale = load<F>(scales + j);
            const F y = bits<F>(bits<I>(load<F>(in + j) / scale) & (scale != 0.0f)) * shrink;
            const F m = magnitude(y), limit = grid.limit(y);
            const auto rounded = grid.round(m, rule, {draw.upper + j, draw.index + j, draw.seed});
            const I known = scale == scale;
            own.nans -= ~known;
            own.clipped -= m > limit;
            if constexpr (Codes) {
                const I code = coder.code(rounded, y) & known;
                own.zeros -= known & coder.is_zero(code);
                store(out + j, __builtin_convertvector(code, F));
            } else {
                const F value = bits<F>(bits<U>(smaller(grid.value(rounded), limit)) | sign(y)) + zero;
                const F result = restore(value, scale, tensor_scale, largest, unbiased);
                own.zeros -= result == 0.0f;
                store(out + j, result);
            }
        }
        return own;
    }

    void round(std::size_t at, std::size_t count) {
        const std::uint64_t index = task_.key.offset + at;
        const Draw draw{random_ + index % 8, index, task_.key.seed};
        if (Stochastic) {
            upper16_(index / 8, random_);
            if (index % 8 + count > kChunk) upper16_(index / 8 + kChunk / 8, random_ + kChunk);
        }
        counts_.add(round_chunk<Stochastic>([&](auto& rule) { return round_by(rule, count, draw); }));
        padding_ += up_to_vector(count) - count;
        if (Codes) narrow(out_, reinterpret_cast<Code*>(task_.codes) + at, count);
        else if (count == kChunk) write(out_, static_cast<T*>(task_.y) + at, task_.past_cache);
        else narrow(out_, static_cast<T*>(task_.y) + at, count);
    }

    void round_small(std::size_t begin, std::size_t end, std::size_t block) {
        const std::size_t count = end - begin, size = coding_.size, n = (count + size - 1) / size;
        const auto stop = [&](std::size_t k) { return (k + 1) * size < count ? (k + 1) * size : count; };
        read(begin, count);
        for (std::size_t k = 0; k < n; ++k) largest_[k] = largest_bits(in_ + k * size, stop(k) - k * size);
        choose_scales(block, n);
        for (std::size_t k = 0; k < n; ++k) fill(k * size, stop(k), scale_of(k));
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
        largest_[0] = largest;
        choose_scales(block, 1);
        const float scale = scale_of(0);
        chunks([&](std::size_t at, std::size_t count) {
            fill(0, count, scale);
            fill(count, up_to_vector(count), 1.0f);
            round(at, count);
        });
    }

public:
    explicit BlockRounder(const Blocks& task) : task_(task) {}

    void run(std::size_t first, std::size_t last, Counts& counts) {
        const std::size_t size = coding_.size, per_row = per_row_;
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
        counts_.add_to(counts, padding_);
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
    const std::size_t size = coding.size, per_row = blocks_per_row(task);
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

inline constexpr BlockKernels kBlocks{quantize_blocks, dequantize_blocks};

}  // namespace LOGRAD_ISA
}  // namespace lograd
