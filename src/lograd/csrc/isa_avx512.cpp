#define LOGRAD_ISA avx512
#include "elementwise.h"

namespace lograd {
const Kernels& avx512_kernels() { return avx512::table("avx512"); }
}  // namespace lograd
