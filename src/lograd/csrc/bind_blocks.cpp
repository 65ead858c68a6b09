// Codes, blocks and the Hadamard transform as Python sees them.  As in module.cpp, arrays come as addresses.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "coding.h"
#include "parallel.h"
#include "random.h"

namespace nb = nanobind;

namespace lograd {

const CodeKernels& code_kernels() {
#ifdef LOGRAD_X86_KERNELS
    if (&kernels() == &avx512_kernels()) return avx512_code_kernels();
    if (&kernels() == &avx2_kernels()) return avx2_code_kernels();
#endif
    return generic_code_kernels();
}

namespace {

using A = std::uintptr_t;
using N = std::size_t;

// Pieces of this many elements start at a new block of random numbers and at a new cache line, even of bytes.
constexpr N kGrain = 1024;

template <class T> T* at(A address) { return reinterpret_cast<T*>(address); }
N bytes(Type type) { return type == Type::kFloat32 ? 4 : 2; }
// A large output is written past the cache, if its rows of vectors are aligned.
bool past_cache(A y, N count, Type type) { return count * bytes(type) >= (N{4} << 20) && y % 64 == 0; }

void add(std::mutex& mutex, const Counts& own, std::int64_t* counts) {
    std::lock_guard<std::mutex> lock(mutex);
    counts[0] += own.zeros, counts[1] += own.nans, counts[2] += own.clipped;
}

void quantize_codes(int type, A x, A codes, N count, A scale, A coding, bool stochastic, A key, int threads, A counts) {
    const auto kind = static_cast<Type>(type);
    const std::uint64_t seed = at<const std::uint64_t>(key)[0], offset = at<const std::uint64_t>(key)[1];
    std::mutex mutex;
    parallel_for(count, kGrain, threads, [&](N begin, N end) {
        Counts own{true};
        const Piece piece{kind, at<const char>(x) + begin * bytes(kind), at<char>(codes) + begin, end - begin,
                          offset + begin, seed};
        code_kernels().quantize_codes(piece, *at<const Coding>(coding), *at<const float>(scale), stochastic, own);
        add(mutex, own, at<std::int64_t>(counts));
    });
}

void dequantize_codes(A codes, int type, A y, N count, A scale, A coding, int threads) {
    const auto kind = static_cast<Type>(type);
    parallel_for(count, kGrain, threads, [&](N begin, N end) {
        code_kernels().dequantize_codes(at<const std::uint8_t>(codes) + begin, kind,
                                        at<char>(y) + begin * bytes(kind), end - begin, *at<const Coding>(coding),
                                        *at<const float>(scale));
    });
}

// Calls body(first row, rows, columns) over pieces of whole rows.  Where `joined`, rows follow one another without a seam
// and become one, cut at even columns.
template <class Body> void over_rows(N rows, N columns, bool joined, int threads, Body body) {
    if (joined) {
        parallel_for(rows * columns, kGrain, threads, [&](N begin, N end) { body(begin, 1, end - begin); });
    } else {
        parallel_for(rows * columns, columns, threads,
                     [&](N begin, N end) { body(begin, (end - begin) / columns, columns); });
    }
}

bool pack_nibbles(A codes, A packed, N rows, N columns, int threads) {
    std::atomic<bool> good{true};
    const bool joined = columns % 2 == 0 || rows == 1;
    over_rows(rows, columns, joined, threads, [&](N begin, N count, N width) {
        const N to = joined ? begin / 2 : begin / columns * ((columns + 1) / 2);
        if (!code_kernels().pack_nibbles(at<const std::uint8_t>(codes) + begin, at<std::uint8_t>(packed) + to, count, width))
            good = false;
    });
    return good;
}

void unpack_nibbles(A packed, A codes, N rows, N columns, int threads) {
    const bool joined = columns % 2 == 0 || rows == 1;
    over_rows(rows, columns, joined, threads, [&](N begin, N count, N width) {
        const N from = joined ? begin / 2 : begin / columns * ((columns + 1) / 2);
        code_kernels().unpack_nibbles(at<const std::uint8_t>(packed) + from, at<std::uint8_t>(codes) + begin, count, width);
    });
}

// Calls body(first, last) over pieces of all blocks.  Without a short block at the end of its rows, a tensor is one row.
template <class Body> void over_blocks(Blocks& task, N rows, int threads, Body body) {
    const N size = task.coding->size;
    if (task.columns % size == 0) task.columns *= rows, rows = 1;
    const N blocks = rows * task.per_row();
    // Counted in elements, so that small tensors stay on one thread; a chunk of small blocks is not cut.
    const N grain = size < kGrain ? kGrain / size * size : size;
    parallel_for(blocks * size, grain, threads, [&](N begin, N end) { body(begin / size, end / size); });
}

void quantize_blocks(A coding, int type, A x, A y, A codes, A scales, N rows, N columns, A tensor_scale,
                     float largest, bool stochastic, bool unbiased, A key, int threads, A counts) {
    const auto kind = static_cast<Type>(type);
    const auto& format = *at<const BlockCoding>(coding);
    Blocks task{&format, kind, at<const void>(x), at<void>(y), at<std::uint8_t>(codes), at<std::uint8_t>(scales), columns,
                *at<const float>(tensor_scale), largest, stochastic, unbiased,
                // A chunk starts where a vector does only if no earlier chunk was short.
                past_cache(y, rows * columns, kind) && 128 % format.size == 0 && columns % format.size == 0,
                at<const std::uint64_t>(key)[0], at<const std::uint64_t>(key)[1]};
    std::mutex mutex;
    over_blocks(task, rows, threads, [&](N first, N last) {
        Counts own{true};
        code_kernels().quantize_blocks(task, first, last, own);
        add(mutex, own, at<std::int64_t>(counts));
    });
}

void dequantize_blocks(A coding, A codes, A scales, int type, A y, N rows, N columns, A tensor_scale,
                       float largest, bool unbiased, int threads) {
    Blocks task{at<const BlockCoding>(coding), static_cast<Type>(type), nullptr, at<void>(y), at<std::uint8_t>(codes), at<std::uint8_t>(scales),
                columns, *at<const float>(tensor_scale), largest, false, unbiased, false, 0, 0};
    over_blocks(task, rows, threads, [&](N first, N last) { code_kernels().dequantize_blocks(task, first, last); });
}

// One bit for each column: bit i mod 32 of word i / 32 mod 4 of block i / 128 of stream 2.
std::vector<std::uint32_t> random_signs(N columns, std::uint64_t seed) {
    std::vector<std::uint32_t> words((columns + 127) / 128 * 4);
    for (N block = 0; block < words.size() / 4; ++block) {
        const Words four = philox(block, 2, seed);
        std::memcpy(&words[4 * block], four.w, sizeof four.w);
    }
    return words;
}

// `seed` is an address, or 0 for no signs.
void hadamard(int type, A x, A y, N rows, N columns, N block, A seed, bool inverse, int threads) {
    const auto kind = static_cast<Type>(type);
    std::vector<std::uint32_t> signs;
    if (seed) signs = random_signs(columns, *at<const std::uint64_t>(seed));
    const Hadamard task{kind, at<const void>(x), at<void>(y), block, columns, seed ? signs.data() : nullptr, inverse,
                        past_cache(y, rows * columns, kind)};
    parallel_for(rows * columns, kGrain, threads, [&](N begin, N end) {
        code_kernels().hadamard(task, begin / block, end / block);
    });
}

// Codings live as long as the process: there is one for each format in use, and Python knows them by their address.
template <class T> A kept(const T& coding) { return reinterpret_cast<A>(new T(coding)); }

A coding(bool integer, int mantissa, int smallest, bool odd_up, float most, float most_negative, int largest,
         int largest_negative, int negative_base, int negative_step, int negative_zero, int nan,
         const std::vector<float>& values) {
    Coding result{{integer, mantissa, smallest, odd_up, most, most_negative}, largest, largest_negative,
                  negative_base, negative_step, negative_zero, nan, {}};
    if (values.size() != 256) throw nb::value_error("a coding has 256 values");
    std::memcpy(result.values, values.data(), sizeof result.values);
    return kept(result);
}

A block_coding(A element, A scale, N size, bool power_of_two, int element_emax, int scale_emin, int scale_emax) {
    return kept(BlockCoding{*at<const Coding>(element), *at<const Coding>(scale), size, power_of_two, element_emax,
                            scale_emin, scale_emax});
}

}  // namespace

void bind_blocks(nb::module_& m) {
    const auto without_gil = nb::call_guard<nb::gil_scoped_release>();
    m.def("coding", &coding);
    m.def("block_coding", &block_coding);
    m.def("quantize_codes", &quantize_codes, without_gil);
    m.def("dequantize_codes", &dequantize_codes, without_gil);
    m.def("pack_nibbles", &pack_nibbles, without_gil);
    m.def("unpack_nibbles", &unpack_nibbles, without_gil);
    m.def("quantize_blocks", &quantize_blocks, without_gil);
    m.def("dequantize_blocks", &dequantize_blocks, without_gil);
    m.def("hadamard", &hadamard, without_gil);
}

}  // namespace lograd
