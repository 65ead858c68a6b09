#define LOGRAD_ISA avx512
#include "code_kernels.h"
#include "elementwise.h"
#include "row_kernels.h"

namespace lograd {
const Kernels& avx512_kernels() { return avx512::table("avx512"); }
const RowKernels& avx512_row_kernels() { return avx512::row_table(); }
const CodeKernels& avx512_code_kernels() { return avx512::code_table(); }
}  // namespace lograd
