#define LOGRAD_ISA sparse_avx2
#include "sparse_kernels.h"

namespace lograd {
const SparseKernels& avx2_sparse_kernels() { return sparse_avx2::sparse_table(); }
}  // namespace lograd
