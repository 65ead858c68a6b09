// Levels of a tensor, for integer products.

#include "kernels/levels/levels.h"

#include "bind/bind.h"

namespace lograd {

using namespace nb::literals;

void bind_levels(Functions& functions) {
    functions.kernel("integer_codes",
                     [](int type, Address x, Address codes, Size batch, Size channels, Size inner, bool transposed,
                        bool per_row, Address limits, Address fold, Size fold_channels, Size fold_inner, int bits,
                        bool symmetric, bool power_of_two, bool stochastic, Address key, Address parameters,
                        Address found, Address counts, int threads) {
        const LevelTensor tensor{type_of(type), at<const void>(x), at<std::uint8_t>(codes), batch, channels,
                                 inner,         transposed};
        const LevelRounding rounding{per_row,
                                     at<const float>(limits),
                                     at<const float>(fold),
                                     fold_channels,
                                     fold_inner,
                                     bits,
                                     symmetric,
                                     power_of_two,
                                     stochastic,
                                     key_at(key),
                                     threads};
        const Counts all = integer_codes(tensor, rounding, at<float>(parameters), at<float>(found));
        write(all, counts);
        at<std::int64_t>(counts)[3] = all.zeros_before;
    },
                     nb::kw_only(), "type"_a, "x"_a, "codes"_a, "batch"_a, "channels"_a, "inner"_a, "transposed"_a,
                     "per_row"_a, "limits"_a, "fold"_a, "fold_channels"_a, "fold_inner"_a, "bits"_a, "symmetric"_a,
                     "power_of_two"_a, "stochastic"_a, "key"_a, "parameters"_a, "found"_a, "counts"_a, "threads"_a);
    functions.kernel("column_largest",
                     [](Address x, Size batch, Size channels, Size inner, Address factors, Address out, int threads) {
        column_largest(at<const float>(x), batch, channels, inner, at<const float>(factors), at<float>(out), threads);
    });
}

}  // namespace lograd
