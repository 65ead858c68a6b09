#include "kernels/codes/codes.h"

#include <atomic>

#include "base/tensor.h"
#include "isa/table.h"

namespace lograd {
namespace {

// Calls body(first code, first byte, rows, columns) over pieces of whole rows.  Rows of even length follow one another
// without a seam and become one, cut at even columns.
template <class Body> void over_rows(std::size_t rows, std::size_t columns, int threads, Body body) {
    if (columns % 2 == 0 || rows == 1) {
        parallel_for(rows * columns, kGrain, threads,
                     [&](std::size_t begin, std::size_t end) { body(begin, begin / 2, 1, end - begin); });
    } else {
        parallel_for(rows * columns, columns, threads, [&](std::size_t begin, std::size_t end) {
            body(begin, begin / columns * ((columns + 1) / 2), (end - begin) / columns, columns);
        });
    }
}

}  // namespace

Counts quantize_codes(const QuantizeCodes& task) {
    Total total;
    parallel_for(task.count, kGrain, task.threads, [&](std::size_t begin, std::size_t end) {
        Counts own{true};
        const Piece piece{task.type,
                          element(task.x, begin, bytes(task.type)),
                          task.codes + begin,
                          end - begin,
                          task.key.offset + begin,
                          task.key.seed};
        kernels().codes.quantize(piece, *task.coding, task.scale, task.stochastic, own);
        total.add(own);
    });
    return total.get();
}

void dequantize_codes(const DequantizeCodes& task) {
    parallel_for(task.count, kGrain, task.threads, [&](std::size_t begin, std::size_t end) {
        const Piece piece{task.type, task.codes + begin, element(task.y, begin, bytes(task.type)), end - begin, 0, 0};
        kernels().codes.dequantize(piece, *task.coding, task.scale);
    });
}

bool pack_nibbles(const std::uint8_t* codes, std::uint8_t* packed, std::size_t rows, std::size_t columns, int threads) {
    std::atomic<bool> good{true};
    over_rows(rows, columns, threads, [&](std::size_t code, std::size_t byte, std::size_t count, std::size_t width) {
        if (!kernels().codes.pack_nibbles(codes + code, packed + byte, count, width)) good = false;
    });
    return good;
}

void unpack_nibbles(const std::uint8_t* packed, std::uint8_t* codes, std::size_t rows, std::size_t columns,
                    int threads) {
    over_rows(rows, columns, threads, [&](std::size_t code, std::size_t byte, std::size_t count, std::size_t width) {
        kernels().codes.unpack_nibbles(packed + byte, codes + code, count, width);
    });
}

}  // namespace lograd
