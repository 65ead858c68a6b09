// What this CPU and its operating system can run, asked at run time.

#pragma once

#include <string>
#include <vector>

namespace lograd {

std::vector<std::string> cpu_features();

// Whether code that was compiled for this instruction set (avx512, avx2 or generic) runs here.
bool cpu_runs(const std::string& isa);

// Name and version of the compiler that built this module.
std::string compiler();

}  // namespace lograd
