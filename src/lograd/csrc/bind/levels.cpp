// Levels of a tensor, for integer products.

#include "kernels/levels/levels.h"

#include "bind/bind.h"

namespace lograd {

void bind_levels(Functions& functions) {
    functions.named("integer_codes",
                    [](int type, Address x, Address codes, Size batch, Size channels, Size inner, bool transposed,
                       bool per_channel, Address limits, Address fold, Size fold_channels, Size fold_inner, int bits,
                       bool symmetric, bool power_of_two, bool stochastic, Address key, Address parameters,
                       Address found, Address counts, int threads) {
        const Counts all = integer_codes(
            {type_of(type), at<const void>(x), at<std::uint8_t>(codes), batch, channels, inner, transposed},
            {per_channel, at<const float>(limits), at<const float>(fold), fold_channels, fold_inner, bits, symmetric,
             power_of_two, stochastic, key_at(key), threads},
            at<float>(parameters), at<float>(found));
        write(all, counts);
        at<std::int64_t>(counts)[3] = all.zeros_before;
    },
                    "type", "x", "codes", "batch", "channels", "inner", "transposed", "per_channel", "limits", "fold",
                    "fold_channels", "fold_inner", "bits", "symmetric", "power_of_two", "stochastic", "key",
                    "parameters", "found", "counts", "threads");
    functions.kernel("column_largest",
                     [](Address x, Size batch, Size channels, Size inner, Address factors, Address out, int threads) {
        column_largest(at<const float>(x), batch, channels, inner, at<const float>(factors), at<float>(out), threads);
    });
}

}  // namespace lograd
