// What the threaded half of a kernel does with a tensor before and after its pieces: addresses, cuts and sums of counts.

#pragma once

#include <mutex>

#include "base/parallel.h"
#include "base/types.h"

namespace lograd {

// Pieces of this many elements start at a new block of random numbers and at a new cache line, even of bytes.
constexpr std::size_t kGrain = 1024;

inline std::size_t bytes(Type type) { return type == Type::kFloat32 ? 4 : 2; }

inline const void* element(const void* x, std::size_t at, std::size_t size) {
    return static_cast<const char*>(x) + at * size;
}
inline void* element(void* y, std::size_t at, std::size_t size) { return static_cast<char*>(y) + at * size; }

// A large output is written past the cache, if its rows of vectors are aligned.
inline bool past_cache(const void* y, std::size_t count, Type type) {
    return count * bytes(type) >= (std::size_t{4} << 20) && reinterpret_cast<std::uintptr_t>(y) % 64 == 0;
}

// Counts of several threads.
class Total {
    std::mutex mutex_;
    Counts counts_;

public:
    explicit Total(bool wanted = true) : counts_{wanted} {}

    void add(const Counts& own) {
        const std::lock_guard<std::mutex> lock(mutex_);
        counts_.zeros += own.zeros, counts_.nans += own.nans, counts_.clipped += own.clipped;
        counts_.zeros_before += own.zeros_before;
    }
    const Counts& get() const { return counts_; }
};

}  // namespace lograd
