#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif
#ifndef _WIN32
#include <unistd.h>
#endif
#ifdef __linux__
#include <dlfcn.h>
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

// Subnormal numbers count, and results are rounded to nearest, whatever the calling thread has set for itself: results
// depend neither on that nor on who computes a piece.
class PlainArithmetic {
#ifdef __SSE2__
    const unsigned before_ = _mm_getcsr();

public:
    PlainArithmetic() { _mm_setcsr(before_ & ~0xe040u); }  // flush to zero, rounding mode, denormals are zero
    ~PlainArithmetic() { _mm_setcsr(before_); }
#else
public:
    PlainArithmetic() {}
#endif
    PlainArithmetic(const PlainArithmetic&) = delete;
    PlainArithmetic& operator=(const PlainArithmetic&) = delete;
};

// OpenMP, if the process has it, as PyTorch brings it.  Its threads wait for work by spinning, for milliseconds after each
// operator, so threads of our own would share the cores with them; and those that spin begin at once.
using OpenMp = void (*)(void (*)(void*), void*, unsigned, unsigned);
const long loaded_by = process_id();

OpenMp openmp() {
#ifdef __linux__
    // Its threads do not survive a fork.
    static const auto found = reinterpret_cast<OpenMp>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    return process_id() == loaded_by ? found : nullptr;
#else
    return nullptr;
#endif
}

// Pieces that the threads of a team take by number; a team may have fewer threads than there are pieces.
struct Team {
    const std::function<void(std::size_t)>& job;
    const std::size_t pieces;
    std::atomic<std::size_t> next{0};
    std::mutex mutex{};
    std::exception_ptr error{};

    static void work(void* team) {
        Team& self = *static_cast<Team*>(team);
        for (std::size_t piece = self.next++; piece < self.pieces; piece = self.next++) {
            try {
                self.job(piece);
            } catch (...) {
                const std::lock_guard<std::mutex> lock(self.mutex);
                self.error = std::current_exception();
            }
        }
    }
};

// Without OpenMP: workers sleep until a job comes, and take its pieces by number.  They live as long as the process.
class Pool {
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    const std::function<void(std::size_t)>* job_ = nullptr;
    std::size_t pieces_ = 0, next_ = 0, running_ = 0;
    unsigned long generation_ = 0;
    std::exception_ptr error_;

    void take_pieces(std::unique_lock<std::mutex>& lock) {
        const auto* job = job_;
        while (job_ == job && next_ < pieces_) {
            const std::size_t piece = next_++;
            ++running_;
            lock.unlock();
            std::exception_ptr error;
            try {
                (*job)(piece);
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            --running_;
            if (error) error_ = error;
        }
    }

    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        unsigned long seen = 0;
        for (;;) {
            wake_.wait(lock, [&] { return generation_ != seen; });
            seen = generation_;
            if (job_ != nullptr) take_pieces(lock);
            if (running_ == 0) done_.notify_all();
        }
    }

public:
    const long owner = process_id();

    void run(std::size_t pieces, const std::function<void(std::size_t)>& job) {
        std::unique_lock<std::mutex> lock(mutex_);
        while (workers_.size() + 1 < pieces) workers_.emplace_back([this] { work(); });
        job_ = &job;
        pieces_ = pieces;
        next_ = 0;
        error_ = nullptr;
        ++generation_;
        wake_.notify_all();
        take_pieces(lock);
        done_.wait(lock, [&] { return running_ == 0 && next_ >= pieces_; });
        job_ = nullptr;
        if (error_) std::rethrow_exception(error_);
    }
};

std::mutex pool_mutex;
Pool* pool = nullptr;

// Calls job(piece) for each piece, on as many threads as there are pieces; false, and no call, if the pool is busy.
bool on_pool(std::size_t pieces, const std::function<void(std::size_t)>& job) {
    if (const OpenMp parallel = openmp()) {
        Team team{job, pieces};
        parallel(Team::work, &team, static_cast<unsigned>(pieces), 0);
        if (team.error) std::rethrow_exception(team.error);
        return true;
    }
    std::unique_lock<std::mutex> lock(pool_mutex, std::try_to_lock);
    if (!lock) return false;
    // Threads do not survive a fork.  The parent's pool is left alone: it cannot be joined from here.
    if (pool == nullptr || pool->owner != process_id()) pool = new Pool;
    pool->run(pieces, job);
    return true;
}

}  // namespace

void parallel_for(std::size_t count, std::size_t grain, int threads,
                  const std::function<void(std::size_t, std::size_t)>& body) {
    if (count == 0) return;
    // Below this a second thread costs more than it saves.
    constexpr std::size_t kWorthAThread = 32768;
    const std::size_t grains = (count + grain - 1) / grain;
    std::size_t pieces = std::min<std::size_t>(threads < 1 ? 1 : threads, count / kWorthAThread);
    pieces = std::min(std::max<std::size_t>(pieces, 1), grains);
    const bool shared = pieces > 1 && on_pool(pieces, [&](std::size_t piece) {
        const std::size_t begin = grains * piece / pieces * grain;
        const std::size_t end = std::min(count, grains * (piece + 1) / pieces * grain);
        const PlainArithmetic plain;
        if (begin < end) body(begin, end);
    });
    // Two callers at once: the second one works alone rather than wait.
    if (shared) return;
    const PlainArithmetic plain;
    body(0, count);
}

void parallel_tasks(std::size_t tasks, int threads, const std::function<void(std::size_t, std::size_t)>& body) {
    const std::size_t workers = std::min<std::size_t>(threads < 1 ? 1 : threads, tasks);
    std::atomic<std::size_t> next{0};
    const std::function<void(std::size_t)> work = [&](std::size_t worker) {
        const PlainArithmetic plain;
        for (std::size_t task = next++; task < tasks; task = next++) body(worker, task);
    };
    if (workers <= 1 || !on_pool(workers, work)) work(0);
}

}  // namespace lograd
