// Threads that share a range of elements: those of PyTorch's OpenMP where there are any, else new ones.
//
// Kernels take their randomness from the element's index alone, so how a range is cut never shows in a result.

#pragma once

#include <cstddef>
#include <functional>

namespace lograd {

// Calls body(begin, end) over pieces of [0, count) on at most `threads` threads, the caller's included.  Pieces start at
// multiples of `grain`, so that none cuts a block that belongs together.
void parallel_for(std::size_t count, std::size_t grain, int threads,
                  const std::function<void(std::size_t, std::size_t)>& body);

// Calls body(worker, task) once for each of `tasks` tasks of unequal length, whoever is free taking the next; `worker` is
// below `threads`, and no two calls at a time have the same.
void parallel_tasks(std::size_t tasks, int threads, const std::function<void(std::size_t, std::size_t)>& body);

}  // namespace lograd
