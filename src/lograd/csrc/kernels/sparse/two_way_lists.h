// What the two ways to walk G share; lists.h has the picture.
//
// Lines are numbered, and so are the places in a line.  The places are cut into segments: a line has a list along for each
// segment.  Lists across belong to places, and hold one group of lines at a time.

#pragma once

#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/sparse/lists.h"
#include "kernels/sparse/workspace.h"

namespace lograd {

// Entries that are copied at once.
constexpr std::size_t kCopied = 4;
// What a set of lists takes beside its lists and entries, at most.
constexpr std::size_t kListPadding = 64 + kCopied * sizeof(Entry);

// Where finished lists of all threads go.
class ListMemory {
    char* data_ = nullptr;
    std::size_t capacity_ = 0;
    std::atomic<std::size_t> used_{0};

public:
    void reset(char* data, std::size_t capacity) { data_ = data, capacity_ = capacity, used_ = 0; }
    std::size_t used() const { return used_; }
    std::size_t capacity() const { return capacity_; }

    // Copies `count` lists, list i of which is at entries[starts[i]], sorted by length; what it sums is at where[i].  If they
    // do not fit, the worker has failed.
    Lists store(Worker&, std::size_t count, const Entry* entries, const std::uint32_t* starts,
                const std::uint32_t* lengths, const std::uint32_t* where);
};

class TwoWayLists {
public:
    struct Shape {
        std::size_t lines;  // at most
        std::size_t pitch;  // more than a group has lines, and no power of two: lists begin in different cache sets
        std::vector<std::size_t> segments;  // the place where each begins
        std::size_t places, longest;        // of all segments, and of the longest
        bool along, across;                 // whether these lists are wanted
    };

    TwoWayLists(Worker& own, const SparseKernels& kernels, Shape shape);

    // For a new set of so many lines.
    void restart(std::size_t lines);
    // For a new group of lines.
    void clear_across();

    // Compresses a part of a line, from `place` in this segment on.  `offsets` go with its elements into the list along,
    // `offset` into the lists across.  Its entries are at `entries()` and their places at `places()` until the next call.
    std::size_t add(const Row& row, std::size_t segment, std::size_t place, const std::uint32_t* offsets,
                    std::uint32_t offset) {
        entries_ = appended_ + next_[segment];
        const std::size_t found = kernels_.compress(row, offsets, entries_, places_);
        if (shape_.across)
            kernels_.scatter(entries_, places_, found, offset, slots_ + place * shape_.pitch, shape_.pitch,
                             slot_lengths_ + place);
        if (shape_.along) next_[segment] += found;
        return found;
    }
    const Entry* entries() const { return entries_; }
    const std::uint16_t* places() const { return places_; }

    // A line of a segment begins where the one before it ended, and ends here.
    std::size_t begin_line(std::size_t segment) const { return next_[segment]; }
    void end_line(std::size_t segment, std::size_t line, std::size_t begin) {
        const std::size_t list = segment * shape_.lines + line;
        lengths_[list] = static_cast<std::uint32_t>(next_[segment] - begin);
        starts_[list] = static_cast<std::uint32_t>(begin - begin_[segment]);
    }

    // The lists of the first lines of a segment.
    Lists store_along(ListMemory& memory, std::size_t segment, std::size_t lines, const std::uint32_t* where) {
        const std::size_t list = segment * shape_.lines;
        return memory.store(own_, lines, appended_ + begin_[segment], starts_ + list, lengths_ + list, where);
    }
    // The lists of these places.
    Lists store_across(ListMemory& memory, std::size_t place, std::size_t places, const std::uint32_t* where) {
        return memory.store(own_, places, slots_, slot_starts_ + place, slot_lengths_ + place, where);
    }

private:
    Worker& own_;
    const SparseKernels& kernels_;
    const Shape shape_;
    Entry *appended_, *slots_, *entries_ = nullptr;
    std::uint16_t* places_;
    std::uint32_t *lengths_, *starts_;            // by segment and line
    std::uint32_t *slot_lengths_, *slot_starts_;  // by place
    std::vector<std::size_t> begin_, next_;       // where the lists of a segment begin, and where its next one does
};

}  // namespace lograd
