#include "log_histogram.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace lograd {
namespace {

// Neighbouring elements often share a bin, and an increment waits for the one before it at the same address.  So
// neighbours count in tables of their own.
constexpr std::size_t kTables = 4;

// Small enough to stay in the L1 cache between the two passes over it.
constexpr std::size_t kBlock = 2048;

// A 32-bit counter cannot overflow within one chunk.
constexpr std::size_t kChunk = std::size_t{1} << 30;

template <class T> class Histogram {
    using Word = typename Binary<T>::Word;
    static constexpr int kFraction = Binary<T>::kFraction;
    static constexpr int kShift = kFraction - kMantissaBits;
    static constexpr Word kMagnitude = ~Word{0} >> 1;
    static constexpr Word kSmallestNormal = Word{1} << kFraction;
    static constexpr Word kInfinity = kMagnitude >> kFraction << kFraction;

    // A key is the biased exponent and the leading mantissa bits.  Keys of normal numbers are bins, up to an offset.
    static constexpr std::size_t kKeys = (kMagnitude >> kShift) + 1;
    static constexpr std::size_t kFirstNormal = kSmallestNormal >> kShift;
    static constexpr std::size_t kFirstInfinite = kInfinity >> kShift;
    static constexpr std::size_t kOffset = (kFraction - 1) * kBinsPerOctave;
    static_assert(kFirstInfinite + kOffset == kBins<T>, "the last normal key is the last bin");

    std::vector<std::uint32_t> tables_ = std::vector<std::uint32_t>(kTables * kKeys);
    std::int64_t* out_;
    std::int64_t subnormals_ = 0;

    static Word magnitude(const T* x) {
        Word bits;
        std::memcpy(&bits, x, sizeof bits);
        return bits & kMagnitude;
    }

    // Subnormal, infinite or NaN?  The sign bit tells: of the first sum for infinities and NaNs, of the difference for
    // zeros and subnormals, of -m for all but zero.  Comparisons would be slower: plain x86-64 has none for 64 bits.
    static Word rare(Word m) { return (m + kSmallestNormal) | ((m - kSmallestNormal) & (0 - m)); }
    static bool is_set(Word flags) { return (flags & ~kMagnitude) != 0; }

    void count_keys(const T* data, std::size_t count) {
        std::uint32_t* tables = tables_.data();
        std::size_t i = 0;
        for (; i + kTables <= count; i += kTables)
            for (std::size_t t = 0; t < kTables; ++t) ++tables[(magnitude(data + i + t) >> kShift) * kTables + t];
        for (; i < count; ++i) ++tables[(magnitude(data + i) >> kShift) * kTables];
    }

    static bool any_rare(const T* data, std::size_t count) {
        Word any = 0;
        for (std::size_t i = 0; i < count; ++i) any |= rare(magnitude(data + i));
        return is_set(any);
    }

    void count_rare(const T* data, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            Word m = magnitude(data + i);
            if (!is_set(rare(m))) continue;
            if (m > kInfinity) {
                ++out_[kBins<T> + kNaNs];
            } else if (m == kInfinity) {
                ++out_[kBins<T> + kInfinities];
            } else {
                // Shift the leading one to where normal numbers have it; each step is one octave further down.
                std::size_t octave = kFraction;
                for (; m < kSmallestNormal; m <<= 1) --octave;
                ++out_[octave * kBinsPerOctave + ((m - kSmallestNormal) >> kShift)];
                ++subnormals_;
            }
        }
    }

public:
    explicit Histogram(std::int64_t* out) : out_(out) {}

    void add(const T* data, std::size_t count) {
        while (count != 0) {
            const std::size_t size = std::min(count, kBlock);
            count_keys(data, size);
            if (any_rare(data, size)) count_rare(data, size);
            data += size;
            count -= size;
        }
    }

    // Moves the 32-bit counts into `out`.
    void flush() {
        std::int64_t zeros_and_subnormals = 0;
        for (std::size_t key = 0; key < kFirstInfinite; ++key) {
            std::int64_t sum = 0;
            for (std::size_t t = 0; t < kTables; ++t) sum += tables_[key * kTables + t];
            if (key < kFirstNormal) zeros_and_subnormals += sum;
            else out_[key + kOffset] += sum;
        }
        out_[kBins<T> + kZeros] += zeros_and_subnormals - subnormals_;
        subnormals_ = 0;
        std::fill(tables_.begin(), tables_.end(), 0);
    }
};

}  // namespace

template <class T> void log_histogram(const T* data, std::size_t count, std::int64_t* out) {
    Histogram<T> histogram(out);
    while (count != 0) {
        const std::size_t size = std::min(count, kChunk);
        histogram.add(data, size);
        histogram.flush();
        data += size;
        count -= size;
    }
}

template void log_histogram(const float*, std::size_t, std::int64_t*);
template void log_histogram(const double*, std::size_t, std::int64_t*);

}  // namespace lograd
