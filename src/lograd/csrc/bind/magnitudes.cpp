// Histogram and selection by magnitude.

#include "bind/bind.h"
#include "kernels/histogram/log_histogram.h"
#include "kernels/select/select.h"

namespace lograd {

void bind_magnitudes(Functions& functions) {
    functions.kernel("log_histogram", [](int type, Address x, Size count, Size stride, Address out, int threads) {
        log_histogram(type, at<const void>(x), count, stride, threads, at<std::int64_t>(out));
    });
    functions.kernel("kth_magnitude", [](int type, Address x, Size count, Size k, Address out, int threads) {
        kth_magnitude(type, at<const void>(x), count, k, threads, at<float>(out));
    });
}

}  // namespace lograd
