#define LOGRAD_ISA avx512
#include "elementwise.h"
#include "row_kernels.h"

namespace lograd {
const Kernels& avx512_kernels() { return avx512::table("avx512"); }
const RowKernels& avx512_row_kernels() { return avx512::row_table(); }
}  // namespace lograd
