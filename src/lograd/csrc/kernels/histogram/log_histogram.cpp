#include "kernels/histogram/log_histogram.h"

#include <algorithm>
#include <mutex>
#include <type_traits>

#include "base/magnitudes.h"
#include "base/parallel.h"

namespace lograd {
namespace {

// Small enough to stay in the L1 cache between the two passes over it.
constexpr std::size_t kBlock = 2048;
// A 32-bit counter cannot overflow within so many elements.
constexpr std::size_t kMost = std::size_t{1} << 30;
// Two cache lines, which the memory delivers almost as fast as one.
constexpr std::size_t kLineBytes = 128;

// The counts of one thread.
template <class Format, std::size_t kTables> class Histogram {
    using Word = typename Format::Word;
    using Layout = std::conditional_t<std::is_same_v<Format, Binary64>, Binary64, Binary32>;
    static constexpr std::size_t kFirstBin = (Format::kLowest - Layout::kLowest) * kBinsPerOctave;
    static constexpr std::size_t kSubnormalBins = Format::kFraction * kBinsPerOctave;

    KeyCounts<Format, kTables> keys_;
    std::uint32_t unusual_ = 0;
    std::int64_t subnormals_[kSubnormalBins] = {}, extras_[kExtras] = {};

    static Word magnitude(const Word* x) { return Format::magnitude(x); }

    // Subnormal, infinite or NaN?  Zeros are too common to be rare: they are what remains.  The sign bit tells: of the sum
    // for infinities and NaNs, of the difference for zeros and subnormals, of -m for all but zero.  Comparisons would be
    // slower: plain x86-64 has none for unsigned or 64-bit vectors.
    static Word rare(Word m) {
        return static_cast<Word>(m + Format::kSmallestNormal) |
               (static_cast<Word>(m - Format::kSmallestNormal) & static_cast<Word>(0 - m));
    }
    static bool is_set(Word flags) { return (flags & static_cast<Word>(~Format::kMagnitude)) != 0; }

    static bool any_rare(const Word* data, std::size_t count) {
        Word any = 0;
        for (std::size_t i = 0; i < count; ++i) any |= rare(magnitude(data + i));
        return is_set(any);
    }

    void count_rare_groups(const Word* data, std::size_t count) {
        constexpr std::size_t kGroup = 32;
        if (!any_rare(data, count)) return;
        std::size_t i = 0;
        for (; i + kGroup <= count; i += kGroup)
            if (any_rare(data + i, kGroup)) count_rare(data + i, kGroup);
        count_rare(data + i, count - i);
    }

    void count_rare(const Word* data, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            const Word m = magnitude(data + i);
            if (!is_set(rare(m))) continue;
            if (m > Format::kInfinity) ++extras_[kNaNs];
            else if (m == Format::kInfinity) ++extras_[kInfinities];
            else ++subnormals_[subnormal_bin(m)];
        }
    }

    static std::size_t subnormal_bin(Word m) {
        const int octave = 63 - __builtin_clzll(m);
        // Move the leading one to where normal numbers have it.
        const Word normal = static_cast<Word>(m << (Format::kFraction - octave));
        return static_cast<std::size_t>(octave) * kBinsPerOctave +
               ((normal - Format::kSmallestNormal) >> Format::kShift);
    }

public:
    void add(const Word* data, std::size_t count) {
        while (count != 0) {
            const std::size_t size = std::min(count, kBlock);
            keys_.add(data, size);
            // The keys tell whether a block needs a second look; most do not.
            const std::uint32_t unusual = keys_.unusual();
            if (unusual != unusual_) count_rare_groups(data, size);
            unusual_ = unusual;
            data += size;
            count -= size;
        }
    }

    void add_to(std::int64_t* out) const {
        // Zeros share their keys with subnormals.
        std::int64_t zeros = 0;
        for (std::size_t key = 0; key < Format::kFirstNormal; ++key) zeros += keys_[key];
        for (std::size_t bin = 0; bin < kSubnormalBins; ++bin) {
            out[kFirstBin + bin] += subnormals_[bin];
            zeros -= subnormals_[bin];
        }
        std::int64_t* normal = out + kFirstBin + kSubnormalBins;
        for (std::size_t key = Format::kFirstNormal; key < Format::kFirstInfinite; ++key)
            normal[key - Format::kFirstNormal] += keys_[key];
        std::int64_t* extras = out + Layout::kBins;
        extras[kZeros] += zeros;
        extras[kNaNs] += extras_[kNaNs];
        extras[kInfinities] += extras_[kInfinities];
    }

    static constexpr std::size_t kLine = kLineBytes / sizeof(Word);

    // One line of each group from `first` to `last`.
    void add_lines(const Word* data, std::size_t count, std::size_t stride, std::size_t first, std::size_t last) {
        const auto start = [&](std::size_t group) {
            const std::uint64_t fraction = std::uint64_t{group} * 0x9E3779B97F4A7C15u >> 32;  // of the golden ratio
            return (group * stride + static_cast<std::size_t>(fraction * stride >> 32)) * kLine;
        };
        constexpr std::size_t kAhead = 64;
        Word block[kBlock];
        std::size_t filled = 0;
        for (std::size_t group = first; group < last; ++group) {
            const std::size_t ahead = start(group + kAhead), at = start(group);
            if (ahead < count) {
                __builtin_prefetch(data + ahead);
                __builtin_prefetch(data + ahead + kLine / 2);
            }
            if (at >= count) continue;  // the last group may be short
            if (count - at >= kLine) {
                std::memcpy(block + filled, data + at, kLineBytes);
                filled += kLine;
            } else {
                std::memcpy(block + filled, data + at, (count - at) * sizeof(Word));
                filled += count - at;
            }
            if (filled + kLine > kBlock) {
                add(block, filled);
                filled = 0;
            }
        }
        add(block, filled);
    }
};

template <class H, class Word>
void count(const Word* words, std::size_t size, std::size_t stride, int threads, std::int64_t* out) {
    // Elements that are read: all, or a line of each group.
    const std::size_t groups = (size + H::kLine * stride - 1) / (H::kLine * stride);
    const std::size_t total = stride == 1 ? size : groups * H::kLine;
    std::mutex mutex;
    parallel_for(total, H::kLine, threads, [&](std::size_t begin, std::size_t end) {
        for (std::size_t next; begin < end; begin = next) {
            next = std::min(end, begin + kMost);
            H histogram;
            if (stride == 1) histogram.add(words + begin, next - begin);
            else histogram.add_lines(words, size, stride, begin / H::kLine, next / H::kLine);
            std::lock_guard<std::mutex> lock(mutex);
            histogram.add_to(out);
        }
    });
}

}  // namespace

void log_histogram(int type, const void* data, std::size_t size, std::size_t stride, int threads, std::int64_t* out) {
    constexpr std::size_t kFew = std::size_t{1} << 18;
    with_format(type, data, [&](auto format, const auto* words) {
        using Format = decltype(format);
        if (size / stride < kFew) count<Histogram<Format, 2>>(words, size, stride, threads, out);
        else count<Histogram<Format, 4>>(words, size, stride, threads, out);
    });
}

}  // namespace lograd
