#include "kernels/select/select.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

#include "base/magnitudes.h"
#include "base/parallel.h"

namespace lograd {
namespace {

constexpr std::size_t kFew = 4096;
constexpr std::size_t kGrain = 1024;
constexpr std::size_t kMost = std::size_t{1} << 30;

// Narrows a range of magnitudes, by their leading bits, until the k-th largest is known.
template <class Format> class Select {
    using Word = typename Format::Word;

    const Word* data_;
    std::size_t count_, rank_;  // rank_: among the candidates, the largest is 1
    int threads_;
    std::vector<Word> gathered_;
    // The candidates are the magnitudes m with m >> shift_ == prefix_.
    int shift_ = 8 * sizeof(Word) - 1;
    Word prefix_ = 0;
    std::size_t candidates_ = count_;

    // Goes down from the highest of the new leading bits to where the rank lies.
    void narrow(const std::vector<std::int64_t>& counts, int shift) {
        std::size_t digit = counts.size() - 1;
        for (; rank_ > static_cast<std::size_t>(counts[digit]); --digit)
            rank_ -= static_cast<std::size_t>(counts[digit]);
        prefix_ = static_cast<Word>(static_cast<Word>(prefix_ << (shift_ - shift)) | digit);
        candidates_ = static_cast<std::size_t>(counts[digit]);
        shift_ = shift;
    }

    // All elements by exponent and leading mantissa bits: the fast pass.
    void narrow_by_key() {
        std::vector<std::int64_t> counts(Format::kKeys);
        std::mutex mutex;
        parallel_for(count_, kGrain, threads_, [&](std::size_t begin, std::size_t end) {
            for (std::size_t next; begin < end; begin = next) {
                next = std::min(end, begin + kMost);
                KeyCounts<Format> keys;
                keys.add(data_ + begin, next - begin);
                std::lock_guard<std::mutex> lock(mutex);
                for (std::size_t key = 0; key < Format::kKeys; ++key) counts[key] += keys[key];
            }
        });
        narrow(counts, Format::kShift);
    }

    // The candidates by their next bits.
    void narrow_by_digit() {
        const int shift = shift_ > 12 ? shift_ - 12 : 0;
        const std::size_t mask = (std::size_t{1} << (shift_ - shift)) - 1;
        std::vector<std::int64_t> counts(mask + 1);
        std::mutex mutex;
        parallel_for(count_, kGrain, threads_, [&](std::size_t begin, std::size_t end) {
            constexpr std::size_t kTables = 4;  // as in KeyCounts
            std::vector<std::int64_t> own(kTables * (mask + 1));
            for (std::size_t i = begin; i < end; ++i) {
                const Word m = Format::magnitude(data_ + i);
                own[(m >> shift & mask) * kTables + i % kTables] += m >> shift_ == prefix_;
            }
            std::lock_guard<std::mutex> lock(mutex);
            for (std::size_t i = 0; i < own.size(); ++i) counts[i / kTables] += own[i];
        });
        narrow(counts, shift);
    }

    // Whether all candidates are one value, as in a tensor that was rounded to a few bits.
    bool all_equal() {
        std::size_t i = 0;
        while (Format::magnitude(data_ + i) >> shift_ != prefix_) ++i;
        const Word value = Format::magnitude(data_ + i);
        constexpr std::size_t kGroup = 64;
        for (; i < count_; i += kGroup) {
            const std::size_t size = std::min(kGroup, count_ - i);
            Word other = 0;
            for (std::size_t j = 0; j < size; ++j) {
                const Word m = Format::magnitude(data_ + i + j);
                other |= (m >> shift_ == prefix_) & (m != value);
            }
            if (other) return false;
        }
        prefix_ = value;
        shift_ = 0;
        return true;
    }

    // Copies the candidates, in any order: only values matter from here on.
    void gather() {
        std::vector<Word> all;
        all.reserve(candidates_);
        std::mutex mutex;
        parallel_for(count_, kGrain, threads_, [&](std::size_t begin, std::size_t end) {
            std::vector<Word> own;
            gather_piece(data_ + begin, end - begin, own);
            std::lock_guard<std::mutex> lock(mutex);
            all.insert(all.end(), own.begin(), own.end());
        });
        gathered_.swap(all);
        data_ = gathered_.data();
        count_ = gathered_.size();
    }

    void gather_piece(const Word* data, std::size_t count, std::vector<Word>& own) const {
        constexpr std::size_t kGroup = 32;  // most groups hold no candidate, which vectors find out quickly
        const int shift = shift_;
        const Word prefix = prefix_;
        for (std::size_t i = 0; i < count; i += kGroup) {
            const std::size_t size = std::min(kGroup, count - i);
            __builtin_prefetch(data + i + 16 * kGroup);
            if (size == kGroup) {
                Word any = 0;
                for (std::size_t j = 0; j < kGroup; ++j) any |= Format::magnitude(data + i + j) >> shift == prefix;
                if (any == 0) continue;
            }
            // Without a branch, as nobody can predict which of them match.
            Word found[kGroup];
            std::size_t matches = 0;
            for (std::size_t j = 0; j < size; ++j) {
                const Word m = Format::magnitude(data + i + j);
                found[matches] = m;
                matches += m >> shift == prefix;
            }
            own.insert(own.end(), found, found + matches);
        }
    }

public:
    Select(const Word* data, std::size_t count, std::size_t k, int threads)
        : data_(data), count_(count), rank_(k), threads_(threads) {}

    Word run() {
        if (count_ > kFew) narrow_by_key();
        while (shift_ > 0 && candidates_ > kFew) {
            // Where few are left, a copy of them is cheaper than another look at all.
            if (candidates_ <= count_ / 8) gather();
            else if (all_equal()) break;
            narrow_by_digit();
        }
        if (shift_ == 0) return prefix_;
        gather();
        const auto found = gathered_.begin() + static_cast<std::ptrdiff_t>(rank_ - 1);
        std::nth_element(gathered_.begin(), found, gathered_.end(), std::greater<Word>());
        return *found;
    }
};

float to_float(Binary32, std::uint32_t m) {
    float value;
    std::memcpy(&value, &m, sizeof value);
    return value;
}
float to_float(Brain16, std::uint16_t m) { return to_float(Binary32{}, std::uint32_t{m} << 16); }
float to_float(Binary16, std::uint16_t m) {
    if (m >= Binary16::kInfinity) return to_float(Binary32{}, 0x7f800000u | std::uint32_t{m & 0x3ffu} << 13);
    if (m >= Binary16::kSmallestNormal) return to_float(Binary32{}, (std::uint32_t{m} << 13) + 0x38000000u);
    return static_cast<float>(m) * 0x1p-24f;
}
float to_float(Binary64, std::uint64_t m) {
    double value;
    std::memcpy(&value, &m, sizeof value);
    return static_cast<float>(value);
}

}  // namespace

void kth_magnitude(int type, const void* data, std::size_t count, std::size_t k, int threads, float* out) {
    with_format(type, data, [&](auto format, const auto* words) {
        const float value = to_float(format, Select<decltype(format)>(words, count, k, threads).run());
        *out = value == value ? value : std::numeric_limits<float>::quiet_NaN();  // one NaN for all
    });
}

}  // namespace lograd
