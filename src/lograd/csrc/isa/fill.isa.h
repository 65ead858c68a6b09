// All kernels of one instruction set, and its table.  The sources beside this file differ in the name of the set, and
// CMakeLists.txt in the flags.

#pragma once

#include "isa/table.h"
#include "kernels/blocks/blocks.isa.h"
#include "kernels/codes/codes.isa.h"
#include "kernels/elementwise/elementwise.isa.h"
#include "kernels/hadamard/hadamard.isa.h"
#include "kernels/integer/integer.isa.h"
#include "kernels/learned/learned.isa.h"
#include "kernels/levels/levels.isa.h"
#include "kernels/normalization/normalization.isa.h"
#include "kernels/packets/packets.isa.h"
#include "kernels/rows/rows.isa.h"
#include "kernels/sparse/sparse.isa.h"

#define LOGRAD_TEXT_OF(name) #name
#define LOGRAD_TEXT(name) LOGRAD_TEXT_OF(name)

namespace lograd {
namespace LOGRAD_ISA {

const Kernels& table() {
    static constexpr Kernels kernels{
        LOGRAD_TEXT(LOGRAD_ISA), kElementwise, kCodes,  kBlocks, kHadamard, kRows, kSparse, kInteger, kLevels,
        kNormalization,          kLearned,     kPackets};
    return kernels;
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
