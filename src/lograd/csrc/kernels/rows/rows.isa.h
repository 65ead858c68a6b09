// The passes over rows for one instruction set.

#pragma once

#include "kernels/rows/quantize.isa.h"
#include "kernels/rows/ranges.isa.h"
#include "kernels/rows/reflect.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

inline constexpr RowKernels kRows{range, quantize_rows, dequantize_rows, reflect};

}  // namespace LOGRAD_ISA
}  // namespace lograd
