// What this CPU and its operating system can run, asked at run time.
#pragma once

#include <string>
#include <vector>

namespace lograd {

std::vector<std::string> cpu_features();

// The widest instruction set for which kernels may be compiled: avx512, avx2, neon or generic.
std::string isa_level();

// Name and version of the compiler that built this module.
std::string compiler();

}  // namespace lograd
