// The integer kernels of one instruction set.

#pragma once

#include "kernels/integer/pack.isa.h"
#include "kernels/integer/tile.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

#if defined(__AVX2__)
constexpr IntegerKernels kInteger{
    kTileRows, kTileColumns, kExactBytes, {4, byte_tile, pack_bytes}, {2, word_tile, pack_words}, finish, largest};
#else
constexpr IntegerKernels kInteger{
    kTileRows, kTileColumns, false, {4, nullptr, pack_bytes}, {2, word_tile, pack_words}, finish, largest};
#endif

}  // namespace LOGRAD_ISA
}  // namespace lograd
