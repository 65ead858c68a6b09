// Counts of floor(log2 |x|) and the leading mantissa bits: the empirical law of |x| in one pass.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lograd {

constexpr int kMantissaBits = 4;
constexpr int kBinsPerOctave = 1 << kMantissaBits;

// The octaves of a type run from its smallest subnormal to its largest finite number.
template <class T> struct Binary;

template <> struct Binary<float> {
    using Word = std::uint32_t;
    static constexpr int kFraction = 23, kLowest = -149, kHighest = 127;
};

template <> struct Binary<double> {
    using Word = std::uint64_t;
    static constexpr int kFraction = 52, kLowest = -1074, kHighest = 1023;
};

template <class T> constexpr int kBins = (Binary<T>::kHighest - Binary<T>::kLowest + 1) * kBinsPerOctave;

// Slots that follow the bins.
enum Extra { kZeros, kNaNs, kInfinities, kExtras };

// Adds the counts of data[0..count) to out[0..kBins<T> + kExtras).
template <class T> void log_histogram(const T* data, std::size_t count, std::int64_t* out);

}  // namespace lograd
