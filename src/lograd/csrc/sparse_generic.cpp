#define LOGRAD_ISA sparse_generic
#include "sparse_kernels.h"

namespace lograd {
const SparseKernels& generic_sparse_kernels() { return sparse_generic::sparse_table(); }
}  // namespace lograd
