// The kernels of one instruction set in one table, and the table in use.

#pragma once

#include "kernels/blocks/blocks.h"
#include "kernels/codes/codes.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/integer/tile.h"
#include "kernels/learned/learned.h"
#include "kernels/levels/levels.h"
#include "kernels/normalization/normalization.h"
#include "kernels/packets/packets.h"
#include "kernels/rows/rows.h"
#include "kernels/sparse/lists.h"

namespace lograd {

struct Kernels {
    const char* name;
    ElementwiseKernels elementwise;
    CodeKernels codes;
    BlockKernels blocks;
    HadamardKernels hadamard;
    RowKernels rows;
    SparseKernels sparse;
    IntegerKernels integer;
    LevelKernels levels;
    NormalizationKernels normalization;
    LearnedKernels learned;
    PacketKernels packets;
};

// One of these for each instruction set; isa/fill.isa.h is what they consist of.
namespace generic {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}
// With instructions for products of bytes; the other kernels are those of the set without.
namespace avx2vnni {
const Kernels& table();
}
namespace avx512vnni {
const Kernels& table();
}

// The kernels in use: the widest that this CPU runs, unless use_isa says less.
const Kernels& kernels();
// Uses the kernels of this name, or the widest ones if it is empty; false, and no change, if this build or CPU lacks them.
bool use_isa(const char* name);

}  // namespace lograd
