#include "kernels/packets/packets.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "base/tensor.h"

namespace lograd {
namespace {

std::size_t blocks_of(std::size_t count) { return (count + kPacketBlock - 1) / kPacketBlock; }

// Codes are packed in pieces that begin at a byte, whatever their bits.
constexpr std::size_t kCodeGrain = 4096;

}  // namespace

std::size_t most_packet_bytes(std::size_t count, Type type) {
    return blocks_of(count) * (2 + kBlockHead) + count * bytes(type);
}

std::size_t encode_packet(const PacketKernels& kernels, const PacketCoding& coding, const PacketPruning& pruning,
                          const void* x, std::size_t count, std::uint8_t* out, int threads, Counts& counts) {
    // Each thread writes where its blocks would begin if all before it were as long as a block can be.
    struct Piece {
        std::size_t at, size;
    };
    const std::size_t size = bytes(coding.type), table = 2 * blocks_of(count);
    std::vector<Piece> pieces;
    std::mutex mutex;
    Total total(counts.wanted);
    parallel_for(count, kPacketBlock, threads, [&](std::size_t begin, std::size_t end) {
        const std::unique_ptr<PacketWorkspace> workspace(new PacketWorkspace);  // not filled with zeros
        const std::size_t block = begin / kPacketBlock, at = table + block * kBlockHead + begin * size;
        Counts own{counts.wanted};
        const std::size_t written = kernels.encode(coding, pruning, element(x, begin, size), end - begin, begin,
                                                   out + at, out + 2 * block, *workspace, own);
        total.add(own);
        const std::lock_guard<std::mutex> lock(mutex);
        pieces.push_back({at, written});
    });
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.at < b.at; });
    std::size_t end = table;
    for (const Piece& piece : pieces) {
        if (piece.at != end) std::memmove(out + end, out + piece.at, piece.size);
        end += piece.size;
    }
    const Counts& found = total.get();
    counts.zeros = found.zeros, counts.nans = found.nans, counts.zeros_before = found.zeros_before;
    return end;
}

PacketFault decode_packet(const PacketKernels& kernels, const PacketCoding& coding, const std::uint8_t* data,
                          std::size_t size, void* y, std::size_t count, int threads) {
    const std::size_t blocks = blocks_of(count), element_size = bytes(coding.type);
    if (size / 2 < blocks) return PacketFault::kTable;
    std::vector<std::size_t> starts(blocks + 1);
    starts[0] = 2 * blocks;
    for (std::size_t b = 0; b < blocks; ++b) starts[b + 1] = starts[b] + (data[2 * b] | data[2 * b + 1] << 8);
    if (starts[blocks] != size) return PacketFault::kFill;
    const bool past = past_cache(y, count, coding.type);
    std::atomic<int> fault{0};
    parallel_for(count, kPacketBlock, threads, [&](std::size_t begin, std::size_t end) {
        const std::unique_ptr<PacketWorkspace> workspace(new PacketWorkspace);  // not filled with zeros
        std::memset(workspace->elements, 0, sizeof workspace->elements);
        const PacketFault found = kernels.decode(coding, data, starts.data() + begin / kPacketBlock,
                                                 element(y, begin, element_size), end - begin, past, *workspace);
        if (found != PacketFault::kNone) fault = static_cast<int>(found);
    });
    return static_cast<PacketFault>(fault.load());
}

std::uint32_t smallest_magnitude(const PacketKernels& kernels, Type type, const void* x, std::size_t count,
                                 int threads) {
    std::mutex mutex;
    std::uint32_t least = 0xffffffffu;
    parallel_for(count, kGrain, threads, [&](std::size_t begin, std::size_t end) {
        const std::uint32_t own = kernels.smallest(type, element(x, begin, bytes(type)), end - begin);
        const std::lock_guard<std::mutex> lock(mutex);
        least = std::min(least, own);
    });
    return least + 1;  // 0 where there is none
}

void pack_bits(const PacketKernels& kernels, const std::uint8_t* codes, std::size_t count, int bits,
               std::uint8_t* packed, int threads) {
    parallel_for(count, kCodeGrain, threads, [&](std::size_t begin, std::size_t end) {
        kernels.pack(codes + begin, end - begin, bits, packed + begin / 8 * static_cast<std::size_t>(bits));
    });
}

void unpack_bits(const PacketKernels& kernels, const std::uint8_t* packed, std::size_t count, int bits,
                 std::uint8_t* codes, int threads) {
    parallel_for(count, kCodeGrain, threads, [&](std::size_t begin, std::size_t end) {
        kernels.unpack(packed + begin / 8 * static_cast<std::size_t>(bits), end - begin, bits, codes + begin);
    });
}

}  // namespace lograd
