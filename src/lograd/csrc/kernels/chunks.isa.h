// The loop that the elementwise kernels share: read a chunk as float32, draw its random numbers, compute, write it back.
//
// A chunk lies in the L1 cache.  Kernels see kChunk floats in, kChunk floats out and kChunk halves of random bits, whole
// vectors only: types, tails and alignment are dealt with here.

#pragma once

#include <type_traits>

#include "base/elements.isa.h"
#include "rounding/random.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

constexpr std::size_t kChunk = 128;
// How far ahead of the arithmetic memory is asked for, in elements.
constexpr std::size_t kAhead = 512;

// A whole chunk.
inline void write(const float* from, float* to, bool past_cache) {
    if (past_cache)
        for (std::size_t j = 0; j < kChunk; j += W) stream(to + j, load<F>(from + j));
    else std::memcpy(to, from, kChunk * sizeof(float));
}
template <class T> void write(const float* from, T* to, bool) { narrow(from, to, kChunk); }

// How a kernel writes a vector of its result.
struct Cached {
    void operator()(float* p, F v) const { store(p, v); }
};
struct Streamed {
    void operator()(float* p, F v) const { stream(p, v); }
};

// Where kernels of floats write: through `put`, once, straight into the output; or into a buffer that they may read again.
// Codes of whole chunks always go straight: `out` is a Code* there.
enum class Writes { kStraight, kBuffered };

// kernel(put, in, out, random, first, valid): `first` is the random index of in[0]; elements from `valid` on are padding.
template <bool Random, class In, class Out, class Kernel>
void for_chunks(const In* x, Out* y, std::size_t n, std::uint64_t index, std::uint64_t seed, Writes writes,
                Kernel kernel) {
    static_assert(Upper16::kBlocks * 8 == kChunk);
    alignas(64) float in[kChunk], out[kChunk];
    alignas(64) std::uint16_t random[kChunk] = {};
    const Upper16 upper16(seed);
    // Blocks of random numbers hold eight elements, so the first chunk ends where a block does.
    std::size_t done = Random ? (8 - index % 8) % 8 : 0;
    if (done > n) done = n;
    const auto ragged = [&](std::size_t at, std::size_t count) {
        widen(x + at, in, count);
        std::memset(in + count, 0, (kChunk - count) * sizeof(float));
        if (Random) {
            alignas(64) std::uint16_t padded[2 * kChunk];
            const std::size_t lead = (index + at) % 8;
            upper16((index + at) / 8, padded);
            if (lead + count > kChunk) upper16((index + at) / 8 + kChunk / 8, padded + kChunk);
            std::memcpy(random, padded + lead, count * sizeof random[0]);
        }
        kernel(Cached{}, in, out, random, index + at, count);
        narrow(out, y + at, count);
    };
    if (done) ragged(0, done);
    const bool apart = static_cast<const void*>(x) != y;
    const bool past_cache =
        n * sizeof(Out) >= (std::size_t{4} << 20) && apart && reinterpret_cast<std::uintptr_t>(y + done) % (W * 4) == 0;
    const auto whole = [&](auto straight, auto put) {
        for (; done + kChunk <= n; done += kChunk) {
            for (std::size_t j = 0; j < kChunk; j += 64 / sizeof(In)) __builtin_prefetch(x + done + kAhead + j);
            if (Random) upper16((index + done) / 8, random);
            const float* from = in;
            if constexpr (std::is_same_v<In, float>) from = x + done;
            else widen(x + done, in, kChunk);
            if constexpr (straight.value) {
                kernel(put, from, y + done, random, index + done, kChunk);
            } else {
                kernel(put, from, out, random, index + done, kChunk);
                write(out, y + done, past_cache);
            }
        }
    };
    if constexpr (std::is_same_v<In, float> && std::is_same_v<Out, float>) {
        if (writes == Writes::kStraight && apart && past_cache) whole(std::true_type{}, Streamed{});
        else if (writes == Writes::kStraight && apart) whole(std::true_type{}, Cached{});
        else whole(std::false_type{}, Cached{});
    } else if constexpr (std::is_same_v<Out, Code>) {
        whole(std::true_type{}, Cached{});
    } else {
        whole(std::false_type{}, Cached{});
    }
    if (done < n) ragged(done, n - done);
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
