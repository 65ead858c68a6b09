// The elementwise kernels.  Each takes (type, x, y, count, ..., counts, threads).

#include "kernels/elementwise/elementwise.h"

#include "bind/bind.h"

namespace lograd {
namespace {

using A = Address;
using N = Size;

Elementwise task(int type, A x, A y, N count, A key, int threads, A counts) {
    return {type_of(type), at<const void>(x), at<void>(y), count, key_at(key), threads, at<std::int64_t>(counts)};
}

float value_at(A address) { return *at<const float>(address); }

}  // namespace

void bind_elementwise(Functions& functions) {
    functions.kernel("stochastic_prune", [](int type, A x, A y, N count, A threshold, A key, A counts, int threads) {
        stochastic_prune(task(type, x, y, count, key, threads, counts), value_at(threshold));
    });
    functions.kernel("threshold_prune", [](int type, A x, A y, N count, A threshold, A counts, int threads) {
        threshold_prune(task(type, x, y, count, 0, threads, counts), value_at(threshold));
    });
    functions.kernel("dither", [](int type, A x, A y, N count, A step, A key, A counts, int threads) {
        dither(task(type, x, y, count, key, threads, counts), value_at(step));
    });
    functions.kernel("quantize", [](int type, A x, A y, N count, A scale, bool integer, int mantissa,
                                    int smallest_exponent, bool odd_exponents_up, float largest, float largest_negative,
                                    bool stochastic, A key, A counts, int threads) {
        const Grid grid{integer, mantissa, smallest_exponent, odd_exponents_up, largest, largest_negative};
        quantize(task(type, x, y, count, key, threads, counts), grid, value_at(scale), stochastic);
    });
}

}  // namespace lograd
