// Blocks of pruned elements to bytes, for one instruction set.

#pragma once

#include "kernels/elementwise/elementwise.isa.h"
#include "kernels/packets/bits.isa.h"
#include "kernels/packets/words.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// How a block tells its values; as in codec/reference.py.
enum BlockMode : unsigned { kNoFlags, kFlags, kAllAlpha, kAsTheyAre };
constexpr unsigned kTail = 64;
constexpr int kCandidates = 8;
// Room before the first place of an element, for the place before it.
constexpr std::size_t kBefore = 32;

// l of the Rice code of the gaps grows by one at each of these numbers of elements, of 4096.
inline unsigned rice_parameter(std::size_t kept, std::size_t count) {
    constexpr std::size_t kMost[] = {1564, 875, 464, 239, 121, 61, 30, 15, 7, 3, 1};
    unsigned l = 0;
    for (const std::size_t most : kMost) l += kept * kPacketBlock <= most * count;
    return l;
}

inline int bit_length(std::uint32_t v) { return v ? 32 - __builtin_clz(v) : 0; }

// Elements that are not +0.0, and where they are; returns how many.  Meanwhile memory from `ahead` on is fetched, as
// much as x has: what follows this loop reads no elements, so the CPU would not do so by itself.
template <class T, class Round>
std::size_t collect(const T* x, std::size_t count, const T* ahead, const Round& round, PacketWorkspace& work) {
    U place;
    for (std::size_t lane = 0; lane < W; ++lane) place[lane] = static_cast<std::uint32_t>(lane);
    std::size_t n = 0;
    for (std::size_t i = 0; i < count; i += W, place += static_cast<std::uint32_t>(W)) {
        __builtin_prefetch(ahead + i, 0, 1);
        const U word = round(load_words(x + i, count - i));
        const std::uint32_t mask = lane_bits(word != 0u);
        compress_lanes(word, mask, work.kept + n);
        n += compress_lanes(place, mask, work.positions + n);
    }
    // Narrowed behind the loop: there are far fewer of them.
    for (std::size_t i = 0; i < n; i += W)
        store(work.places + kBefore + i, __builtin_convertvector(load<U>(work.positions + i), H));
    return n;
}

// Flags and distances of the kept elements.
struct BlockTold {
    BlockMode mode;
    std::size_t stored;  // distances
    int width;           // of the largest one
};

inline BlockTold tell_values(const PacketCoding& coding, const ElementBits& kind, std::size_t n,
                             PacketWorkspace& work) {
    const U rest = U{} + (kind.sign - 1u), alpha = U{} + coding.alpha;
    const U base = U{} + (coding.alpha >> coding.cut), wrap = U{} + ((kind.sign >> coding.cut) - 1u);
    U all{};
    std::size_t others = 0;
    store(work.kept + n, alpha);  // behind the end: no flag, no distance
    for (std::size_t i = 0; i < n; i += W) {
        const U m = load<U>(work.kept + i) & rest;
        const U distance = ((m >> coding.cut) - base) & wrap;
        all |= distance;
        store(work.distances + i, distance);
        const std::uint32_t mask = lane_bits(m != alpha);
        std::memcpy(work.flags + i / 8, &mask, W / 8);
        others += static_cast<std::size_t>(__builtin_popcount(mask));
    }
    std::uint32_t any_bit = 0;
    for (std::size_t lane = 0; lane < W; ++lane) any_bit |= all[lane];
    const int width = bit_length(any_bit);
    const std::size_t alphas = n - others;
    if (!others) return {kAllAlpha, 0, 0};
    if (!alphas || (!coding.cut && alphas * static_cast<std::size_t>(width) <= n)) return {kNoFlags, n, width};
    std::size_t stored = 0;
    for (std::size_t i = 0; i < n; i += W)
        stored +=
            compress_lanes(load<U>(work.distances + i), load_lane_bits(work.flags + i / 8), work.distances + stored);
    return {kFlags, stored, width};
}

// The width that makes distances shortest if what is beyond it follows in unary; `full` if none is shorter.
inline int tail_width(const std::uint32_t* distances, std::size_t stored, int full) {
    std::uint64_t least = stored * static_cast<std::uint64_t>(full);
    int best = full;
    for (int width = full - 1; width >= 0 && width >= full - kCandidates; --width) {
        std::uint64_t cost = stored * static_cast<std::uint64_t>(width + 1);
        for (std::size_t i = 0; i < stored; ++i) cost += distances[i] >> width;
        if (cost < least) least = cost, best = width;
    }
    return best;
}

inline std::uint8_t* put_tail(const std::uint32_t* distances, std::size_t stored, int width, std::uint8_t* out) {
    std::size_t bits_used = stored;
    for (std::size_t i = 0; i < stored; ++i) bits_used += distances[i] >> width;
    std::memset(out, 0, bytes_for(bits_used));
    for (std::size_t i = 0, at = 0; i < stored; ++i, ++at) {
        at += distances[i] >> width;
        out[at / 8] = static_cast<std::uint8_t>(out[at / 8] | 1u << at % 8);
    }
    return out + bytes_for(bits_used);
}

// The low bits of the gaps to `out`, and ones of their high bits to `marks`; returns how many bits these take.
inline std::size_t put_gaps(std::size_t n, unsigned l, std::size_t count, PacketWorkspace& work, std::uint8_t* out) {
    typedef std::uint8_t Narrow __attribute__((vector_size(W)));
    std::uint16_t* const places = work.places + kBefore;
    places[-1] = 0xffffu;
    const H mask = H{} + static_cast<std::uint16_t>((1u << l) - 1);
    for (std::size_t i = 0; i < n; i += W) {
        const H gap = load<H>(places + i) - load<H>(places + i - 1) - static_cast<std::uint16_t>(1);
        store(work.high + i, gap >> static_cast<int>(l));
        if (l <= 8) store(work.low + i, __builtin_convertvector(gap & mask, Narrow));
        else
            for (std::size_t lane = 0; lane < W; ++lane) work.positions[i + lane] = gap[lane] & mask[lane];
    }
    std::memset(work.marks, 0, n + (count >> l) + 64);
    std::size_t at = 0;
    for (std::size_t i = 0; i < n; ++i) {
        at += work.high[i];
        work.marks[at++] = 1;
    }
    if (l > 8) {
        put_numbers(work.positions, n, static_cast<int>(l), out);
    } else if (l) {
        store64(work.low + n, 0);
        pack_bytes(work.low, n, static_cast<int>(l), out);
    }
    return at;
}

// Elements as they are, with their mantissa cut if that was asked for.
template <class T>
std::size_t put_plain(const T* x, std::size_t count, std::size_t n, bool cut, PacketWorkspace& work) {
    const std::uint8_t head[kBlockHead] = {0, 0, kAsTheyAre << 4, 0};
    std::memcpy(work.block, head, kBlockHead);
    if (!cut) {
        std::memcpy(work.block + kBlockHead, x, count * sizeof(T));
    } else {
        std::memset(work.block + kBlockHead, 0, count * sizeof(T));
        for (std::size_t i = 0; i < n; ++i) {
            const T word = static_cast<T>(work.kept[i]);
            std::memcpy(work.block + kBlockHead + work.places[kBefore + i] * sizeof(T), &word, sizeof(T));
        }
    }
    return kBlockHead + count * sizeof(T);
}

// A block to work.block; returns its bytes.
template <class T>
std::size_t encode_block(const PacketCoding& coding, const T* x, std::size_t count, const T* ahead,
                         PacketWorkspace& work) {
    const ElementBits kind(coding.type);
    const std::size_t n = coding.cut ? collect(x, count, ahead, CutMantissa(kind, coding.alpha, coding.cut), work)
                                     : collect(x, count, ahead, [](U word) { return word; }, work);
    if (!n) return 0;
    const unsigned l = rice_parameter(n, count);
    std::uint8_t* out = work.block + kBlockHead;
    const std::size_t high_bits = put_gaps(n, l, count, work, out);
    out += bytes_for(n * l);
    for (std::size_t i = 0; i < n; i += W) {
        const std::uint32_t signs = lane_bits(bits<I>(load<U>(work.kept + i) << (32 - kind.bits)));
        std::memcpy(out + i / 8, &signs, 4);
    }
    const std::size_t bit_bytes = bytes_for(n);
    if (n % 8) out[bit_bytes - 1] = static_cast<std::uint8_t>(out[bit_bytes - 1] & ((1u << n % 8) - 1));
    out += bit_bytes;
    const BlockTold told = tell_values(coding, kind, n, work);
    if (told.mode == kFlags) {
        std::memcpy(out, work.flags, bit_bytes);
        out += bit_bytes;
    }
    const int width = coding.entropy ? tail_width(work.distances, told.stored, told.width) : told.width;
    put_numbers(work.distances, told.stored, width, out);
    out += bytes_for(told.stored * static_cast<std::size_t>(width));
    if (width < told.width) out = put_tail(work.distances, told.stored, width, out);
    gather_marks(work.marks, high_bits, out);
    out += bytes_for(high_bits);
    const std::size_t length = static_cast<std::size_t>(out - work.block);
    if (length >= kBlockHead + count * sizeof(T)) return put_plain(x, count, n, coding.cut != 0, work);
    work.block[0] = static_cast<std::uint8_t>(n), work.block[1] = static_cast<std::uint8_t>(n >> 8);
    work.block[2] = static_cast<std::uint8_t>(l | told.mode << 4 | (width < told.width ? kTail : 0));
    work.block[3] = static_cast<std::uint8_t>(width);
    return length;
}

inline std::size_t encode_blocks(const PacketCoding& coding, const PacketPruning& pruning, const void* x,
                                 std::size_t count, std::uint64_t index, std::uint8_t* out, std::uint8_t* lengths,
                                 PacketWorkspace& work, Counts& counts) {
    return with_words(coding.type, [&](auto* null) {
        const auto* from = static_cast<decltype(null)>(const_cast<void*>(x));
        std::uint8_t* to = out;
        for (std::size_t at = 0; at < count; at += kPacketBlock, lengths += 2) {
            const std::size_t size = count - at < kPacketBlock ? count - at : kPacketBlock;
            const auto* block = from + at;
            const auto* ahead = count - at < 2 * kPacketBlock ? block : block + kPacketBlock;
            if (pruning.wanted) {  // this loop waits for random numbers, and not for memory
                const Piece piece{coding.type,     block, work.elements, size, pruning.key.offset + index + at,
                                  pruning.key.seed};
                stochastic_prune(piece, pruning.threshold, counts);
                ahead = block = static_cast<decltype(null)>(static_cast<void*>(work.elements));
            }
            const std::size_t length = encode_block(coding, block, size, ahead, work);
            std::memcpy(to, work.block, length);
            to += length;
            lengths[0] = static_cast<std::uint8_t>(length), lengths[1] = static_cast<std::uint8_t>(length >> 8);
        }
        return static_cast<std::size_t>(to - out);
    });
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
