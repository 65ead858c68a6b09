// Memory of the sparse products that is kept from call to call: a fresh page costs more than what is written into it.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace lograd {

// Memory that grows.
class Buffer {
    void* data_ = nullptr;
    std::size_t bytes_ = 0;

public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    template <class T> T* get(std::size_t count) {
        const std::size_t bytes = (count * sizeof(T) + 127) / 64 * 64;
        if (bytes > bytes_) {
            std::free(data_);
            bytes_ = 0;
            data_ = std::aligned_alloc(64, bytes);
            if (data_ == nullptr) throw std::bad_alloc();
            bytes_ = bytes;
        }
        return static_cast<T*>(data_);
    }
};

// What one thread needs; its size depends on the constants of the plan alone.
struct Worker {
    Buffer random, appended, slots, places, lengths, starts, where, offsets, sums, weight_sums, panel, order;
    bool failed = false;  // to find room for lists
};

struct Workspace {
    Buffer lists, weight, sums;
    std::vector<std::unique_ptr<Worker>> workers;
};

// The workspace of the last call, or a new one if another call has it.
class Borrowed {
    std::unique_ptr<Workspace> workspace_;

public:
    // With at least so many workers.
    explicit Borrowed(std::size_t workers);
    ~Borrowed();
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Workspace& operator*() { return *workspace_; }
};

}  // namespace lograd
