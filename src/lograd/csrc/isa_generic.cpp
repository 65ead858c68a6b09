#define LOGRAD_ISA generic
#include "elementwise.h"

namespace lograd {
const Kernels& generic_kernels() { return generic::table("generic"); }
}  // namespace lograd
