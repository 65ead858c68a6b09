#define LOGRAD_ISA avx2
#include "code_kernels.h"
#include "elementwise.h"
#include "row_kernels.h"

namespace lograd {
const Kernels& avx2_kernels() { return avx2::table("avx2"); }
const RowKernels& avx2_row_kernels() { return avx2::row_table(); }
const CodeKernels& avx2_code_kernels() { return avx2::code_table(); }
}  // namespace lograd
