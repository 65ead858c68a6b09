#include "parallel.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#ifndef _WIN32
#include <unistd.h>
#endif

namespace lograd {
namespace {

long process_id() {
#ifdef _WIN32
    return 0;
#else
    return static_cast<long>(getpid());
#endif
}

// Workers sleep until a job comes, and take its pieces by number.
class Pool {
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    const std::function<void(std::size_t)>* job_ = nullptr;
    std::size_t pieces_ = 0, next_ = 0, running_ = 0;
    unsigned long generation_ = 0;
    bool stopping_ = false;

    void take_pieces(std::unique_lock<std::mutex>& lock) {
        const auto* job = job_;
        while (job_ == job && next_ < pieces_) {
            const std::size_t piece = next_++;
            ++running_;
            lock.unlock();
            (*job)(piece);
            lock.lock();
            --running_;
        }
    }

    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        unsigned long seen = 0;
        for (;;) {
            wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
            if (stopping_) return;
            seen = generation_;
            if (job_ != nullptr) take_pieces(lock);
            if (running_ == 0) done_.notify_all();
        }
    }

public:
    const long owner = process_id();

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    void run(std::size_t pieces, const std::function<void(std::size_t)>& job) {
        std::unique_lock<std::mutex> lock(mutex_);
        while (workers_.size() + 1 < pieces) workers_.emplace_back([this] { work(); });
        job_ = &job;
        pieces_ = pieces;
        next_ = 0;
        ++generation_;
        wake_.notify_all();
        take_pieces(lock);
        done_.wait(lock, [&] { return running_ == 0 && next_ >= pieces_; });
        job_ = nullptr;
    }
};

std::mutex pool_mutex;
Pool* pool = nullptr;

}  // namespace

void parallel_for(std::size_t count, std::size_t grain, int threads,
                  const std::function<void(std::size_t, std::size_t)>& body) {
    if (count == 0) return;
    // Below this a second thread costs more than it saves.
    constexpr std::size_t kWorthAThread = 32768;
    const std::size_t grains = (count + grain - 1) / grain;
    std::size_t pieces = std::min<std::size_t>(threads < 1 ? 1 : threads, count / kWorthAThread);
    pieces = std::min(std::max<std::size_t>(pieces, 1), grains);
    std::unique_lock<std::mutex> lock(pool_mutex, std::defer_lock);
    // Two callers at once: the second one works alone rather than wait.
    if (pieces == 1 || !lock.try_lock()) {
        body(0, count);
        return;
    }
    // Threads do not survive a fork.  The parent's pool is left alone: it cannot be joined from here.
    if (pool == nullptr || pool->owner != process_id()) pool = new Pool;
    pool->run(pieces, [&](std::size_t piece) {
        const std::size_t begin = grains * piece / pieces * grain;
        const std::size_t end = std::min(count, grains * (piece + 1) / pieces * grain);
        if (begin < end) body(begin, end);
    });
}

}  // namespace lograd
