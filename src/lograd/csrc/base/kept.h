// A workspace that is kept from call to call, and lent to one call at a time.

#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

namespace lograd {

// `Workspace` has a vector `workers` of unique pointers, one for each thread.
template <class Workspace> class Borrowed {
    static inline std::mutex mutex_;
    static inline std::unique_ptr<Workspace> kept_;
    std::unique_ptr<Workspace> workspace_;

public:
    // The workspace of the last call, or a new one if another call has it; with at least so many workers.
    explicit Borrowed(std::size_t workers) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            workspace_ = kept_ ? std::move(kept_) : std::make_unique<Workspace>();
        }
        auto& all = workspace_->workers;
        while (all.size() < workers)
            all.push_back(std::make_unique<typename std::decay_t<decltype(all)>::value_type::element_type>());
    }
    ~Borrowed() {
        const std::lock_guard<std::mutex> lock(mutex_);
        kept_ = std::move(workspace_);
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Workspace& operator*() { return *workspace_; }

    // Gives the memory back.
    static void release() {
        const std::lock_guard<std::mutex> lock(mutex_);
        kept_.reset();
    }
};

}  // namespace lograd
