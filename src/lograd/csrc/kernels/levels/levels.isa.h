// Levels for one instruction set: ranges, codes, and the transposition of bytes.

#pragma once

#include "kernels/levels/largest.isa.h"
#include "kernels/levels/quantize.isa.h"
#include "kernels/levels/transpose.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

inline constexpr LevelKernels kLevels{level_range, quantize_levels, transpose_bytes, largest_of_columns,
                                      largest_of_all};

}  // namespace LOGRAD_ISA
}  // namespace lograd
