// Gradients of learned ranges.

#include "kernels/learned/learned.h"
#include "bind/bind.h"

namespace lograd {

void bind_learned(Functions& functions) {
    functions.kernel("range_gradients", [](int type, Address g, Address x, Address d_x, Size count, double factor,
                                           int low, int high, Address total, int threads) {
        const RangeGradients task{
            type_of(type), at<const void>(g),          at<const void>(x),       at<void>(d_x),
            count,         static_cast<float>(factor), static_cast<float>(low), static_cast<float>(high)};
        *at<double>(total) = range_gradients(task, threads);
    });
}

}  // namespace lograd
