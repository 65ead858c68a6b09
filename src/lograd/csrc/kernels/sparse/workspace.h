// Memory of the sparse products that is kept from call to call: a fresh page costs more than what is written into it.

#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"

namespace lograd {

// What one thread needs; its size depends on the constants of the plan alone.
struct Worker {
    Buffer random, appended, slots, places, lengths, starts, where, offsets, sums, weight_sums, panel, order;
    bool failed = false;  // to find room for lists
};

struct Workspace {
    Buffer lists, weight, sums;
    std::vector<std::unique_ptr<Worker>> workers;
};

}  // namespace lograd
