#define LOGRAD_ISA avx2
#include "elementwise.h"

namespace lograd {
const Kernels& avx2_kernels() { return avx2::table("avx2"); }
}  // namespace lograd
