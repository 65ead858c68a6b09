// The kernels of the sparse products for one instruction set.

#pragma once

#include "kernels/sparse/compress.isa.h"
#include "kernels/sparse/multiply.isa.h"
#include "kernels/sparse/pack.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

inline constexpr SparseKernels kSparse{
    W,
    {nullptr, multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>, multiply<7>, multiply<8>,
     multiply<9>, multiply<10>, multiply<11>, multiply<12>, multiply<13>, multiply<14>},
    draw,
    compress,
    scatter,
    pack,
    unpack,
    count};

}  // namespace LOGRAD_ISA
}  // namespace lograd
