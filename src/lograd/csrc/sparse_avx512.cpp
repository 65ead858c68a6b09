#define LOGRAD_ISA sparse_avx512
#include "sparse_kernels.h"

namespace lograd {
const SparseKernels& avx512_sparse_kernels() { return sparse_avx512::sparse_table(); }
}  // namespace lograd
