// The small types that all rooms share: element types, pieces of a tensor, counts.
//
// Headers without `.isa` in their name are also compiled with the flags of an instruction set, outside its namespace.  So
// their structs are plain data there: a function of theirs that a kernel called could be the copy of the wrong set.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lograd {

// Numbers as in FLOAT_TYPES of ops/contracts.py.
enum class Type : int { kFloat32, kBfloat16, kFloat16 };

struct Bfloat16 {
    std::uint16_t bits;
};
struct Float16 {
    std::uint16_t bits;
};
// A byte that holds the number of a value.
struct Code {
    std::uint8_t value;
};

// Randomness is a function of a seed and of an element's place, counted from an offset.
struct Key {
    std::uint64_t seed, offset;
};

// A piece of a tensor: `count` elements from address x to address y; `index` is the random index of the first.
struct Piece {
    Type type;
    const void* x;
    void* y;
    std::size_t count;
    std::uint64_t index, seed;
};

struct Counts {
    bool wanted;
    std::int64_t zeros = 0, nans = 0, clipped = 0, zeros_before = 0;
};

}  // namespace lograd
