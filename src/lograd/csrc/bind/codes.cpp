// Codes of at most 8 bits, and the formats that they belong to.

#include "kernels/codes/codes.h"

#include <nanobind/stl/vector.h>

#include <cstring>
#include <vector>

#include "bind/bind.h"

namespace lograd {
namespace {

using A = Address;
using N = Size;

// Codings live as long as the process: there is one for each format in use, and Python knows them by their address.
template <class T> A kept(const T& coding) { return reinterpret_cast<A>(new T(coding)); }

A coding(bool integer, int mantissa, int smallest_exponent, bool odd_exponents_up, float most, float most_negative,
         int largest, int largest_negative, int negative_base, int negative_step, int negative_zero, int nan,
         const std::vector<float>& values) {
    const Grid grid{integer, mantissa, smallest_exponent, odd_exponents_up, most, most_negative};
    Coding result{grid, largest, largest_negative, negative_base, negative_step, negative_zero, nan, {}};
    if (values.size() != 256) throw nb::value_error("a coding has 256 values");
    std::memcpy(result.values, values.data(), sizeof result.values);
    return kept(result);
}

A block_coding(A element, A scale, N size, bool power_of_two, int element_emax, int scale_emin, int scale_emax) {
    return kept(BlockCoding{*at<const Coding>(element), *at<const Coding>(scale), size, power_of_two, element_emax,
                            scale_emin, scale_emax});
}

}  // namespace

void bind_codes(Functions& functions) {
    functions.other("coding", &coding);
    functions.other("block_coding", &block_coding);
    functions.kernel("quantize_codes", [](int type, A x, A codes, N count, A scale, A coding, bool stochastic, A key,
                                          A counts, int threads) {
        write(quantize_codes({type_of(type), at<const void>(x), at<std::uint8_t>(codes), count,
                              at<const Coding>(coding), *at<const float>(scale), stochastic, key_at(key), threads}),
              counts);
    });
    functions.kernel("dequantize_codes", [](A codes, int type, A y, N count, A scale, A coding, int threads) {
        dequantize_codes({at<const std::uint8_t>(codes), type_of(type), at<void>(y), count, at<const Coding>(coding),
                          *at<const float>(scale), threads});
    });
    functions.kernel("pack_nibbles", [](A codes, A packed, N rows, N columns, int threads) {
        return pack_nibbles(at<const std::uint8_t>(codes), at<std::uint8_t>(packed), rows, columns, threads);
    });
    functions.kernel("unpack_nibbles", [](A packed, A codes, N rows, N columns, int threads) {
        unpack_nibbles(at<const std::uint8_t>(packed), at<std::uint8_t>(codes), rows, columns, threads);
    });
}

}  // namespace lograd
