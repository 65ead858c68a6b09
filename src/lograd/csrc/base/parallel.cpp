#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif
#ifdef __linux__
#include <dlfcn.h>
#include <unistd.h>
#endif

namespace lograd {
namespace {

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

#ifdef __linux__
const pid_t loaded_by = getpid();  // OpenMP's threads do not survive a fork
#endif

// OpenMP, if the process has it, as PyTorch brings it.  Its threads wait for work by spinning, for milliseconds after each
// operator, so threads of our own would share the cores with them; and those that spin begin at once.
using OpenMp = void (*)(void (*)(void*), void*, unsigned, unsigned);

OpenMp openmp() {
#ifdef __linux__
    static const auto found = reinterpret_cast<OpenMp>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    return getpid() == loaded_by ? found : nullptr;
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

// Calls job(piece) for each piece, on as many threads as there are pieces.
void on_threads(std::size_t pieces, const std::function<void(std::size_t)>& job) {
    Team team{job, pieces};
    if (const OpenMp parallel = openmp()) {
        parallel(Team::work, &team, static_cast<unsigned>(pieces), 0);
    } else {
        std::vector<std::thread> others;
        try {
            while (others.size() + 1 < pieces) others.emplace_back(Team::work, &team);
        } catch (const std::system_error&) {  // no more threads: those that there are do all pieces
        }
        Team::work(&team);
        for (std::thread& other : others) other.join();
    }
    if (team.error) std::rethrow_exception(team.error);
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
    const std::function<void(std::size_t)> work = [&](std::size_t piece) {
        const std::size_t begin = grains * piece / pieces * grain;
        const std::size_t end = std::min(count, grains * (piece + 1) / pieces * grain);
        const PlainArithmetic plain;
        if (begin < end) body(begin, end);
    };
    if (pieces > 1) on_threads(pieces, work);
    else work(0);
}

void parallel_tasks(std::size_t tasks, int threads, const std::function<void(std::size_t, std::size_t)>& body) {
    const std::size_t workers = std::min<std::size_t>(threads < 1 ? 1 : threads, tasks);
    std::atomic<std::size_t> next{0};
    const std::function<void(std::size_t)> work = [&](std::size_t worker) {
        const PlainArithmetic plain;
        for (std::size_t task = next++; task < tasks; task = next++) body(worker, task);
    };
    if (workers > 1) on_threads(workers, work);
    else work(0);
}

}  // namespace lograd
