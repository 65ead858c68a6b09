// The integer kernels of one instruction set.

#pragma once

#include "kernels/integer/blocks.isa.h"
#include "kernels/integer/pack.isa.h"
#include "kernels/integer/tile.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

constexpr MicroKernels kWords{2, word_tile, word_tile, block_tile<word_tile>, pack_words};
#if defined(__AVX2__)
constexpr MicroKernels kBytes{4, byte_tile, plain_byte_tile, byte_block_tile, pack_bytes};
#else
constexpr MicroKernels kBytes{4, nullptr, nullptr, nullptr, pack_bytes};
constexpr bool kExactBytes = false;
#endif
constexpr IntegerKernels kInteger{
    kMR, kNR, kBlockRows, kExactBytes, kBytes, kWords, epilogue, block_epilogue, largest, longest_group, look_up};

}  // namespace LOGRAD_ISA
}  // namespace lograd
