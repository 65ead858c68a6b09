// How products of small integers are cut for the caches: the GEMM's MC, KC and NC, in one place.
//
// One set of numbers serves all instruction sets today: they were measured with AVX2 (tiles of 6 x 16) and with AVX-512
// VNNI (8 x 32), on cores with 32 to 48 KB of L1 and 512 KB to 2 MB of L2 cache.  A unit is four bytes of k, so a panel of
// KC units takes 4 KC NR bytes, and the rows of a tile 4 KC MR.

#pragma once

#include <cstddef>

namespace lograd {

struct Blocking {
    // Rows of A that pass while panels of B are in the L2 cache; a multiple of every MR (4, 6 and 8).
    std::size_t mc;
    // Units after which the next rows take their turn with the same part of a panel.  512 take 32 KB of a panel with an NR
    // of 16 and 64 KB with 32, which stay in the L2 cache, and 12 to 16 KB of rows, which stay in the L1 cache.
    std::size_t kc;
    // Bytes of panels that stay in the L2 cache while rows pass: half of the smallest.
    std::size_t nc_bytes;
    // Units that are packed at a time: 96 rows of them are 24 KB, in the L1 cache.
    std::size_t pack_units;
    // Padded images that are made at a time: so many pixels let the panels of a kernel be read often, and so many bytes
    // stay in the L2 cache.
    std::size_t image_pixels, image_bytes;
    // The gradient of a convolution's weight: bytes of both packed operands that share the L2 cache, and the units of a
    // panel (12 KB with an NR of 16, 24 KB with 32) that stay in the L1 cache while all rows pass.
    std::size_t gradient_bytes, gradient_kc;
};

constexpr Blocking kBlocking{96, 512, std::size_t{1} << 18, 64, 256, std::size_t{1} << 19, std::size_t{3} << 19, 192};

}  // namespace lograd
