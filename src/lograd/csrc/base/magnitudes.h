// Magnitudes as whole numbers: |x| <= |y| exactly where the bits of |x| are, as a number, at most those of |y|.  So zeros,
// subnormals, infinities and NaN (above all) need no care, and no rounding or flushing mode of the CPU matters.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace lograd {

constexpr int kMantissaBits = 4;
constexpr int kBinsPerOctave = 1 << kMantissaBits;

// A binary format: kFraction stored mantissa bits, octaves from its smallest subnormal to its largest finite number.
template <class W, int Fraction, int Lowest, int Highest> struct Binary {
    using Word = W;
    static constexpr int kFraction = Fraction, kLowest = Lowest, kHighest = Highest;
    static constexpr int kBins = (Highest - Lowest + 1) * kBinsPerOctave;

    static constexpr Word kMagnitude = static_cast<Word>(-1) >> 1;
    static constexpr Word kSmallestNormal = static_cast<Word>(Word{1} << Fraction);
    static constexpr Word kInfinity = static_cast<Word>(kMagnitude >> Fraction << Fraction);

    // A key is the biased exponent and the leading mantissa bits.
    static constexpr int kShift = Fraction - kMantissaBits;
    static constexpr std::size_t kKeys = (kMagnitude >> kShift) + 1;
    static constexpr std::size_t kFirstNormal = kSmallestNormal >> kShift, kFirstInfinite = kInfinity >> kShift;

    static Word magnitude(const Word* x) {
        Word bits;
        std::memcpy(&bits, x, sizeof bits);
        return bits & kMagnitude;
    }
};

using Binary32 = Binary<std::uint32_t, 23, -149, 127>;
using Brain16 = Binary<std::uint16_t, 7, -133, 127>;
using Binary16 = Binary<std::uint16_t, 10, -24, 15>;
using Binary64 = Binary<std::uint64_t, 52, -1074, 1023>;

// Calls f(format, words) for the element type that Python names by a number; see ops/library.py.
template <class Function> void with_format(int type, const void* data, Function f) {
    switch (type) {
        case 0: return f(Binary32{}, static_cast<const std::uint32_t*>(data));
        case 1: return f(Brain16{}, static_cast<const std::uint16_t*>(data));
        case 2: return f(Binary16{}, static_cast<const std::uint16_t*>(data));
        case 3: return f(Binary64{}, static_cast<const std::uint64_t*>(data));
    }
}

// Counts the keys of up to 2^32 - 1 elements.
//
// An increment waits for the one before it at the same address, and neighbours often share a key.  So neighbours count in
// tables of their own; for few elements it costs more to clear and to sum up several.
template <class Format, std::size_t kTables = 4> class KeyCounts {
    using Word = typename Format::Word;

    std::vector<std::uint32_t> tables_ = std::vector<std::uint32_t>(kTables * Format::kKeys);

public:
    void add(const Word* data, std::size_t count) {
        constexpr std::size_t kPacked = sizeof(std::uint64_t) / sizeof(Word);
        constexpr std::size_t kStep = kTables > kPacked ? kTables : kPacked;
        constexpr std::size_t kAhead = 2048 / sizeof(Word);
        std::uint32_t* tables = tables_.data();
        std::size_t i = 0;
        for (; i + kStep <= count; i += kStep) {
            __builtin_prefetch(data + i + kAhead);
            // One load brings several elements, which leaves the load ports to the counters.
            for (std::size_t j = 0; j < kStep; j += kPacked) {
                std::uint64_t packed;
                std::memcpy(&packed, data + i + j, sizeof packed);
                for (std::size_t p = 0; p < kPacked; ++p) {
                    const std::uint64_t key = packed >> (8 * sizeof(Word) * p + Format::kShift) & (Format::kKeys - 1);
                    ++tables[key * kTables + (j + p) % kTables];
                }
            }
        }
        for (; i < count; ++i) ++tables[(Format::magnitude(data + i) >> Format::kShift) * kTables];
    }

    std::int64_t operator[](std::size_t key) const {
        std::uint32_t sum = 0;
        for (std::size_t t = 0; t < kTables; ++t) sum += tables_[key * kTables + t];
        return sum;
    }

    // Elements so far that are zero, subnormal, infinite or NaN, modulo 2^32.
    std::uint32_t unusual() const {
        std::uint32_t sum = 0;
        const auto add_range = [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin * kTables; i < end * kTables; ++i) sum += tables_[i];
        };
        add_range(0, Format::kFirstNormal);
        add_range(Format::kFirstInfinite, Format::kKeys);
        return sum;
    }
};

}  // namespace lograd
