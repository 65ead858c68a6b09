// Blocks of bytes to elements, for one instruction set.
//
// Bytes come from anywhere.  A block is copied to a buffer with room behind it, each string of bits is seen to end within
// the block before it is read, and positions are seen to lie within the block before anything is written to them.

#pragma once

#include "kernels/packets/bits.isa.h"
#include "kernels/packets/encode.isa.h"
#include "kernels/packets/words.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// Elements that are not +0.0: work.high and work.kept hold n positions and words, unless there is a fault.
struct BlockRead {
    PacketFault fault;
    std::size_t n = 0;
};

// Bytes of a block that were not read yet.
class BlockRest {
    const std::uint8_t* at_;
    std::size_t left_;

public:
    BlockRest(const std::uint8_t* at, std::size_t left) : at_(at), left_(left) {}

    const std::uint8_t* at() const { return at_; }
    std::size_t left() const { return left_; }
    // The next bytes; null if there are not as many.
    const std::uint8_t* take(std::size_t size) {
        if (size > left_) return nullptr;
        const std::uint8_t* from = at_;
        at_ += size, left_ -= size;
        return from;
    }
};

// Adds numbers in unary to distances, above their lowest `width` bits.
inline PacketFault add_tail(BlockRest& rest, std::size_t stored, int width, int most, std::uint32_t* distances) {
    const std::uint8_t* const from = rest.at();
    const std::size_t end = 8 * rest.left();
    std::size_t at = 0;
    for (std::size_t i = 0; i < stored; ++i) {
        const std::size_t begin = at;
        while (at < end && !(from[at / 8] >> at % 8 & 1)) {
            // To the next one, or to the next byte.
            const unsigned ahead = from[at / 8] >> at % 8;
            at += ahead ? static_cast<std::size_t>(__builtin_ctz(ahead)) : 8 - at % 8;
        }
        if (at >= end) return PacketFault::kShort;
        const std::size_t high = at++ - begin;
        if (high >> (most - width)) return PacketFault::kDistance;
        distances[i] |= static_cast<std::uint32_t>(high) << width;
    }
    rest.take(bytes_for(at));
    return PacketFault::kNone;
}

// Positions in work.high from the places of the ones and the low bits of the gaps, which are known to stay small.
inline void place_by_bytes(std::size_t n, unsigned l, PacketWorkspace& work) {
#if defined(__SSE2__)
    const __m128i numbers = _mm_set_epi16(7, 6, 5, 4, 3, 2, 1, 0), shift = _mm_cvtsi32_si128(static_cast<int>(l));
    __m128i before = _mm_setzero_si128();
    for (std::size_t i = 0; i < n; i += 8) {
        __m128i sum =
            _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(work.low + i)), _mm_setzero_si128());
        sum = _mm_add_epi16(sum, _mm_slli_si128(sum, 2));
        sum = _mm_add_epi16(sum, _mm_slli_si128(sum, 4));
        sum = _mm_add_epi16(_mm_add_epi16(sum, _mm_slli_si128(sum, 8)), before);
        before = _mm_shufflehi_epi16(sum, 0xff);
        before = _mm_unpackhi_epi64(before, before);
        const __m128i number = _mm_add_epi16(numbers, _mm_set1_epi16(static_cast<short>(i)));
        const __m128i high = _mm_sll_epi16(_mm_sub_epi16(load<__m128i>(work.places + i), number), shift);
        store(work.high + i, _mm_add_epi16(_mm_add_epi16(number, high), sum));
    }
#else
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
        sum += work.low[i];
        work.high[i] = static_cast<std::uint16_t>(i + ((work.places[i] - i) << l) + sum);
    }
#endif
}

// Positions in work.high from the low bits of the gaps and the string of their high bits, which fills the rest of the block.
inline PacketFault place_kept(const std::uint8_t* low, std::size_t n, unsigned l, std::size_t count,
                              const BlockRest& rest, PacketWorkspace& work) {
    if (rest.left() > bytes_for(n + (count >> l))) return PacketFault::kPositions;
    std::size_t ones = 0;
    for (std::size_t i = 0; i < rest.left(); i += W / 8)  // behind the block are zeros
        ones += list_lanes(load_lane_bits(rest.at() + i), 8 * i, work.places + ones);
    if (ones < n) return PacketFault::kShort;
    const std::size_t last = work.places[n - 1];
    if (last / 8 + 1 != rest.left()) return PacketFault::kPositions;
    std::uint64_t total = 0;
    if (l > 8) {
        get_numbers(low, n, static_cast<int>(l), work.positions);
        for (std::size_t i = 0; i < n; ++i) total += work.positions[i];
    } else if (l) {
        unpack_bytes(low, n, static_cast<int>(l), work.low);
        for (std::size_t i = 0; i < n; ++i) total += work.low[i];
    }
    // Positions grow, so that all of them lie within the block where the last one does.
    if (((last + 1 - n) << l) + total + n > count) return PacketFault::kPositions;
    if (l && l <= 8) {
        place_by_bytes(n, l, work);
    } else {
        std::uint32_t sum = 0;
        for (std::size_t i = 0; i < n; ++i) {
            if (l) sum += work.positions[i];
            work.high[i] = static_cast<std::uint16_t>(i + ((work.places[i] - i) << l) + sum);
        }
    }
    return PacketFault::kNone;
}

// The block of `length` bytes in work.block, with zeros behind it; it is not one of elements as they are.
inline BlockRead read_block(const PacketCoding& coding, std::size_t length, std::size_t count, PacketWorkspace& work) {
    const ElementBits kind(coding.type);
    const std::uint8_t* head = work.block;
    const std::size_t n = head[0] | head[1] << 8;
    const unsigned l = head[2] & 15, mode = head[2] >> 4 & 3;
    const int width = head[3], most = kind.bits - 1 - coding.cut;
    if (n < 1 || n > count || width > most || head[2] & 128) return {PacketFault::kNumbers};
    BlockRest rest(work.block + kBlockHead, length - kBlockHead);
    const std::uint8_t* low = rest.take(bytes_for(n * l));
    const std::uint8_t* signs = low ? rest.take(bytes_for(n)) : nullptr;
    const std::uint8_t* flags = signs && mode == kFlags ? rest.take(bytes_for(n)) : signs;
    if (!flags) return {PacketFault::kShort};
    std::size_t stored = mode == kNoFlags ? n : 0;
    if (mode == kFlags) {
        std::size_t i = 0;
        for (; i + 64 <= n; i += 64) stored += static_cast<std::size_t>(__builtin_popcountll(load64(flags + i / 8)));
        if (i < n) {
            const std::uint64_t last = load64(flags + i / 8) & ((std::uint64_t{1} << (n - i)) - 1);
            stored += static_cast<std::size_t>(__builtin_popcountll(last));
        }
    }
    const std::uint8_t* distances = rest.take(bytes_for(stored * static_cast<std::size_t>(width)));
    if (!distances) return {PacketFault::kShort};
    get_numbers(distances, stored, width, work.distances);
    if (head[2] & kTail) {
        const PacketFault fault = add_tail(rest, stored, width, most, work.distances);
        if (fault != PacketFault::kNone) return {fault};
    }
    const PacketFault fault = place_kept(low, n, l, count, rest, work);
    if (fault != PacketFault::kNone) return {fault};
    const U alpha = U{} + coding.alpha, base = U{} + (coding.alpha >> coding.cut);
    const U wrap = U{} + ((kind.sign >> coding.cut) - 1u), sign = U{} + kind.sign;
    const std::uint32_t* next = work.distances;
    for (std::size_t i = 0; i < n; i += W) {
        const std::uint32_t mask = mode == kFlags     ? load_lane_bits(flags + i / 8)
                                   : mode == kNoFlags ? (1u << (W - 1) << 1) - 1u
                                                      : 0u;
        const U other = ((expand_lanes(next, mask) + base) & wrap) << coding.cut, is_other = bits<U>(lanes_of(mask));
        next += __builtin_popcount(mask);
        const U negative = bits<U>(lanes_of(load_lane_bits(signs + i / 8))) & sign;
        store(work.kept + i, (other & is_other) | (alpha & ~is_other) | negative);
    }
    return {PacketFault::kNone, n};
}

inline void write_elements(const void* from, std::size_t size, void* to, bool past_cache) {
    if (!past_cache || size % 64) {
        std::memcpy(to, from, size);
        return;
    }
    for (std::size_t i = 0; i < size / 4; i += W)
        stream(static_cast<float*>(to) + i, load<F>(static_cast<const float*>(from) + i));
}

inline PacketFault decode_blocks(const PacketCoding& coding, const std::uint8_t* data, const std::size_t* starts,
                                 void* y, std::size_t count, bool past_cache, PacketWorkspace& work) {
    return with_words(coding.type, [&](auto* null) {
        using T = std::remove_pointer_t<decltype(null)>;
        T* out = static_cast<T*>(y);
        T* block = static_cast<T*>(static_cast<void*>(work.elements));
        for (std::size_t at = 0; at < count; at += kPacketBlock, ++starts) {
            const std::size_t here = count - at < kPacketBlock ? count - at : kPacketBlock;
            const std::size_t length = starts[1] - starts[0];
            if (!length) {
                write_elements(block, here * sizeof(T), out + at, past_cache);
                continue;
            }
            if (length < kBlockHead) return PacketFault::kHead;
            const std::uint8_t* from = data + starts[0];
            if ((from[2] >> 4 & 3) == kAsTheyAre) {
                if (length != kBlockHead + here * sizeof(T)) return PacketFault::kPlain;
                std::memcpy(out + at, from + kBlockHead, here * sizeof(T));
                continue;
            }
            if (length > kBlockHead + here * sizeof(T)) return PacketFault::kNumbers;
            std::memcpy(work.block, from, length);
            std::memset(work.block + length, 0, 64);
            const BlockRead found = read_block(coding, length, here, work);
            if (found.fault != PacketFault::kNone) return found.fault;
            for (std::size_t i = 0; i < found.n; ++i) block[work.high[i]] = static_cast<T>(work.kept[i]);
            write_elements(block, here * sizeof(T), out + at, past_cache);
            for (std::size_t i = 0; i < found.n; ++i) block[work.high[i]] = 0;
        }
        return PacketFault::kNone;
    });
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
