// Packets of pruned tensors: blocks of 4096 elements, encoded and decoded.  docs/packet-format.md describes the bytes and
// codec/reference.py defines them; tests/codec hold both equal.
//
// A decoder believes nothing: it reads only what lies in the packet, and says what is wrong with it.

#pragma once

#include "base/types.h"

namespace lograd {

constexpr std::size_t kPacketBlock = 4096;
constexpr std::size_t kBlockHead = 4;

// What all blocks of a packet share.
struct PacketCoding {
    Type type;
    std::uint32_t alpha;  // a magnitude: the bits of an element without its sign
    int cut;              // mantissa bits that kept values lack
    bool entropy;         // for encoders: distances may have a tail in unary
};

// Pruning on the way into a packet.
struct PacketPruning {
    bool wanted;
    float threshold;
    Key key;
};

// Numbers as in FAULTS of codec/pruned.py.
enum class PacketFault : int {
    kNone,
    kTable,      // the packet ends before its table of blocks does
    kFill,       // the blocks do not fill the packet
    kHead,       // a block is shorter than its head
    kNumbers,    // the head holds numbers that no block has
    kShort,      // a block ends before its numbers do
    kPositions,  // positions go beyond the end of a block
    kDistance,   // a distance has more bits than its type
    kPlain,      // elements as they are do not fill their block
};

// Room for one block on its way, for one thread.  Whole vectors may be written behind the last element.
struct PacketWorkspace {
    static constexpr std::size_t kMost = kPacketBlock + 64;
    alignas(64) std::uint32_t elements[kMost];   // of a block, in their own type
    alignas(64) std::uint32_t kept[kMost];       // those that are not +0.0
    alignas(64) std::uint32_t distances[kMost];  // magnitudes as distances to alpha
    alignas(64) std::uint32_t positions[kMost];
    alignas(64) std::uint16_t places[2 * kMost + 64];  // positions, or those of ones in a string of bits
    alignas(64) std::uint16_t high[kMost];
    alignas(64) std::uint8_t low[kMost];
    alignas(64) std::uint8_t marks[2 * kMost];
    alignas(64) std::uint8_t flags[kMost / 8];
    alignas(64) std::uint8_t block[20480];
};

// The most bytes of the table and the blocks of so many elements.
std::size_t most_packet_bytes(std::size_t count, Type type);

struct PacketKernels;

// Writes the table and the blocks of a tensor to `out`, and returns their bytes.  Counts are those of pruning, if wanted.
std::size_t encode_packet(const PacketKernels&, const PacketCoding&, const PacketPruning&, const void* x,
                          std::size_t count, std::uint8_t* out, int threads, Counts& counts);

// Writes the elements of a table and its blocks, which fill `size` bytes, to y.
PacketFault decode_packet(const PacketKernels&, const PacketCoding&, const std::uint8_t* data, std::size_t size,
                          void* y, std::size_t count, int threads);

// The smallest magnitude that is not zero; 0 if there is none.
std::uint32_t smallest_magnitude(const PacketKernels&, Type type, const void* x, std::size_t count, int threads);

// Codes of `bits` bits, one after the other, and back.
void pack_bits(const PacketKernels&, const std::uint8_t* codes, std::size_t count, int bits, std::uint8_t* packed,
               int threads);
void unpack_bits(const PacketKernels&, const std::uint8_t* packed, std::size_t count, int bits, std::uint8_t* codes,
                 int threads);

// CRC-32 as zlib has it, continued from `crc`.
std::uint32_t crc32(const std::uint8_t* data, std::size_t size, std::uint32_t crc);

// The kernels of one instruction set, for the blocks of a piece of a tensor.
struct PacketKernels {
    // Writes the blocks one after the other and their lengths as 16 bits each; returns their bytes.
    std::size_t (*encode)(const PacketCoding&, const PacketPruning&, const void* x, std::size_t count,
                          std::uint64_t index, std::uint8_t* out, std::uint8_t* lengths, PacketWorkspace&, Counts&);
    // Block b lies at data + starts[b] and ends where the next one begins.  `elements` of the workspace is all zero.
    PacketFault (*decode)(const PacketCoding&, const std::uint8_t* data, const std::size_t* starts, void* y,
                          std::size_t count, bool past_cache, PacketWorkspace&);
    // Less 1, and the largest number if there is none.
    std::uint32_t (*smallest)(Type, const void* x, std::size_t count);
    void (*pack)(const std::uint8_t* codes, std::size_t count, int bits, std::uint8_t* packed);
    void (*unpack)(const std::uint8_t* packed, std::size_t count, int bits, std::uint8_t* codes);
};

}  // namespace lograd
