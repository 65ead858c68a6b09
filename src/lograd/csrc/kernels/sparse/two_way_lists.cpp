#include "kernels/sparse/two_way_lists.h"

#include <algorithm>
#include <utility>

namespace lograd {
namespace {

// Lists that are asked for ahead of their copy.
constexpr std::size_t kListsAhead = 4;

}  // namespace

Lists ListMemory::store(Worker& own, std::size_t count, const Entry* entries, const std::uint32_t* starts,
                        const std::uint32_t* lengths, const std::uint32_t* where) {
    std::size_t total = 0, longest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        total += lengths[i];
        longest = std::max<std::size_t>(longest, lengths[i]);
    }
    auto* order = own.order.get<std::uint32_t>(count + longest + 2);
    auto* first = order + count;
    std::fill(first, first + longest + 2, 0u);
    for (std::size_t i = 0; i < count; ++i) ++first[lengths[i] + 1];
    const std::size_t empty = first[1];
    for (std::size_t n = 0; n <= longest; ++n) first[n + 1] += first[n];
    for (std::size_t i = 0; i < count; ++i) order[first[lengths[i]]++] = static_cast<std::uint32_t>(i);
    const std::size_t bytes = (count - empty) * sizeof(List) + (total + kCopied - 1) * sizeof(Entry);
    const std::size_t rounded = (bytes + 63) / 64 * 64, at = used_.fetch_add(rounded);
    if (at + rounded > capacity_) {
        own.failed = true;
        return {};
    }
    char* to = data_ + at;
    auto* lists = reinterpret_cast<List*>(to);
    auto* out = reinterpret_cast<Entry*>(lists + (count - empty));
    const Lists result{lists, out, count - empty};
    for (std::size_t k = empty; k < count; ++k) {
        const std::size_t i = order[k], length = lengths[i];
        *lists++ = {where[i], static_cast<std::uint32_t>(length)};
        const Entry* from = entries + starts[i];
        // In this order lists lie where the hardware does not look ahead.
        const Entry* later = entries + starts[order[std::min(k + kListsAhead, count - 1)]];
        for (std::size_t j = 0; j < length; j += 64 / sizeof(Entry)) __builtin_prefetch(later + j);
        for (std::size_t j = 0; j < length; j += kCopied) std::memcpy(out + j, from + j, kCopied * sizeof(Entry));
        out += length;
    }
    return result;
}

TwoWayLists::TwoWayLists(Worker& own, const SparseKernels& kernels, Shape shape)
    : own_(own), kernels_(kernels), shape_(std::move(shape)), begin_(shape_.segments.size()),
      next_(shape_.segments.size()) {
    const std::size_t segments = shape_.segments.size(), lists = segments * shape_.lines;
    appended_ = own.appended.get<Entry>(shape_.places * shape_.lines + kOverrun * (segments + 1));
    slots_ = own.slots.get<Entry>(shape_.across ? shape_.places * shape_.pitch + kCopied : 0);
    places_ = own.places.get<std::uint16_t>(shape_.longest + kOverrun);
    lengths_ = own.lengths.get<std::uint32_t>(lists + shape_.places);
    starts_ = own.starts.get<std::uint32_t>(lists + shape_.places);
    slot_lengths_ = lengths_ + lists;
    slot_starts_ = starts_ + lists;
    for (std::size_t place = 0; place < shape_.places; ++place)
        slot_starts_[place] = static_cast<std::uint32_t>(place * shape_.pitch);
}

void TwoWayLists::restart(std::size_t lines) {
    for (std::size_t segment = 0; segment < begin_.size(); ++segment)
        begin_[segment] = next_[segment] = shape_.segments[segment] * lines + segment * kOverrun;
}

void TwoWayLists::clear_across() {
    if (shape_.across) std::fill(slot_lengths_, slot_lengths_ + shape_.places, 0u);
}

}  // namespace lograd
