#define LOGRAD_ISA generic
#include "code_kernels.h"
#include "elementwise.h"
#include "row_kernels.h"

namespace lograd {
const Kernels& generic_kernels() { return generic::table("generic"); }
const RowKernels& generic_row_kernels() { return generic::row_table(); }
const CodeKernels& generic_code_kernels() { return generic::code_table(); }
}  // namespace lograd
