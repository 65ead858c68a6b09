// Blocks that share a scale, and the Hadamard transform before them.

#include "kernels/blocks/blocks.h"

#include "bind/bind.h"
#include "kernels/hadamard/hadamard.h"

namespace lograd {

using A = Address;
using N = Size;

void bind_blocks(Functions& functions) {
    functions.kernel("quantize_blocks",
                     [](A coding, int type, A x, A y, A codes, A scales, N rows, N columns, A tensor_scale,
                        float largest, bool stochastic, bool unbiased, A key, A counts, int threads) {
        write(quantize_blocks({at<const BlockCoding>(coding), type_of(type), at<const void>(x), at<void>(y),
                               at<std::uint8_t>(codes), at<std::uint8_t>(scales), rows, columns,
                               *at<const float>(tensor_scale), largest, stochastic, unbiased, false, key_at(key),
                               threads}),
              counts);
    });
    functions.kernel("dequantize_blocks", [](A coding, A codes, A scales, int type, A y, N rows, N columns,
                                             A tensor_scale, float largest, bool unbiased, int threads) {
        dequantize_blocks({at<const BlockCoding>(coding), type_of(type), nullptr, at<void>(y), at<std::uint8_t>(codes),
                           at<std::uint8_t>(scales), rows, columns, *at<const float>(tensor_scale), largest, false,
                           unbiased, false, key_at(0), threads});
    });
    // `key` is the address of a seed, or 0 for no random signs.
    functions.kernel("hadamard", [](int type, A x, A y, N rows, N columns, N block, A key, bool inverse, int threads) {
        hadamard({type_of(type), at<const void>(x), at<void>(y), rows, columns, block, at<const std::uint64_t>(key),
                  inverse, threads});
    });
}

}  // namespace lograd
