// Memory that a kernel keeps from call to call: a fresh page costs more than what is written into it.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

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

}  // namespace lograd
