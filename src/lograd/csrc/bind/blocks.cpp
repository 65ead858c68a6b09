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
                        float largest, bool stochastic, bool unbiased, A key, int threads, A counts) {
        Blocks task{};
        task.coding = at<const BlockCoding>(coding);
        task.type = type_of(type);
        task.x = at<const void>(x);
        task.y = at<void>(y);
        task.codes = at<std::uint8_t>(codes);
        task.scales = at<std::uint8_t>(scales);
        task.rows = rows;
        task.columns = columns;
        task.tensor_scale = *at<const float>(tensor_scale);
        task.largest = largest;
        task.stochastic = stochastic;
        task.unbiased = unbiased;
        task.key = key_at(key);
        task.threads = threads;
        write(quantize_blocks(task), counts);
    });
    functions.kernel("dequantize_blocks", [](A coding, A codes, A scales, int type, A y, N rows, N columns,
                                             A tensor_scale, float largest, bool unbiased, int threads) {
        Blocks task{};
        task.coding = at<const BlockCoding>(coding);
        task.type = type_of(type);
        task.y = at<void>(y);
        task.codes = at<std::uint8_t>(codes);
        task.scales = at<std::uint8_t>(scales);
        task.rows = rows;
        task.columns = columns;
        task.tensor_scale = *at<const float>(tensor_scale);
        task.largest = largest;
        task.unbiased = unbiased;
        task.threads = threads;
        dequantize_blocks(task);
    });
    // `key` is the address of a seed, or 0 for no random signs.
    functions.kernel("hadamard", [](int type, A x, A y, N rows, N columns, N block, A key, bool inverse, int threads) {
        hadamard({type_of(type), at<const void>(x), at<void>(y), rows, columns, block, at<const std::uint64_t>(key),
                  inverse, threads});
    });
}

}  // namespace lograd
