// BatchNorm in training.  Each takes (x, ..., images, channels, places, last, threads); an address may be 0 for nothing.

#include "kernels/normalization/normalization.h"

#include "bind/bind.h"

namespace lograd {

void bind_normalization(Functions& functions) {
    using A = Address;
    using N = Size;
    functions.named(
        "batch_statistics",
        [](A x, double epsilon, A mean, A variance, A inverse, N images, N channels, N places, bool last, int threads) {
        batch_statistics({images, channels, places, last, threads}, at<const float>(x), epsilon, at<float>(mean),
                         at<float>(variance), at<float>(inverse));
    }, "x", "epsilon", "mean", "variance", "inverse", "images", "channels", "places", "last", "threads");
    functions.named("batch_normalize",
                    [](A x, A mean, A inverse, A weight, A bias, A residual, A y, A mask, N images, N channels,
                       N places, bool last, int threads) {
        batch_normalize({images, channels, places, last, threads},
                        {at<const float>(x), at<const float>(mean), at<const float>(inverse), at<const float>(weight),
                         at<const float>(bias), at<const float>(residual), at<float>(y), at<std::uint8_t>(mask)});
    },
                    "x", "mean", "inverse", "weight", "bias", "residual", "y", "mask", "images", "channels", "places",
                    "last", "threads");
    functions.named("batch_normalize_backward",
                    [](A g, A x, A mean, A inverse, A weight, A mask, A d_x, A d_weight, A d_bias, A masked, N images,
                       N channels, N places, bool last, int threads) {
        batch_normalize_backward({images, channels, places, last, threads},
                                 {at<const float>(g), at<const float>(x), at<const float>(mean),
                                  at<const float>(inverse), at<const float>(weight), at<const std::uint8_t>(mask),
                                  at<float>(d_x), at<float>(d_weight), at<float>(d_bias), at<float>(masked)});
    },
                    "g", "x", "mean", "inverse", "weight", "mask", "d_x", "d_weight", "d_bias", "masked", "images",
                    "channels", "places", "last", "threads");
}

}  // namespace lograd
