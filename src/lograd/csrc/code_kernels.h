// The table of the kernels for codes, blocks and the Hadamard transform, of the instruction set being compiled.

#pragma once

#include "blocks.h"
#include "hadamard.h"
#include "packed.h"

namespace lograd {
namespace LOGRAD_ISA {

inline const CodeKernels& code_table() {
    static const CodeKernels kernels{quantize_codes,  dequantize_codes,  pack_nibbles, unpack_nibbles,
                                     quantize_blocks, dequantize_blocks, hadamard};
    return kernels;
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
