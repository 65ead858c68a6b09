// The product of lists and a dense panel for one instruction set.
//
// It may fuse multiplication and addition, and asks for that by name: results depend on the instruction set in the last
// bits, never on the number of threads.

#pragma once

#include "base/vector.isa.h"
#include "kernels/sparse/lists.h"

namespace lograd {
namespace LOGRAD_ISA {

inline F multiply_add(F a, F b, F c) {
#if defined(__AVX512F__)
    return bits<F>(_mm512_fmadd_ps(bits<__m512>(a), bits<__m512>(b), bits<__m512>(c)));
#elif defined(__FMA__)
    return bits<F>(_mm256_fmadd_ps(bits<__m256>(a), bits<__m256>(b), bits<__m256>(c)));
#else
    return a * b + c;
#endif
}

inline F broadcast(const float* p) {
#if defined(__AVX512F__)
    return bits<F>(_mm512_set1_ps(*p));
#elif defined(__AVX2__)
    return bits<F>(_mm256_broadcast_ss(p));
#else
    return F{} + *p;
#endif
}

template <int Vectors> void multiply(const Lists& block, const char* panel, float* tile) {
    const Entry* entry = block.entries;
    for (const List *list = block.lists, *last = list + block.count; list != last; ++list) {
        F sums[Vectors];
        for (std::size_t v = 0; v < Vectors * W; v += 16) __builtin_prefetch(tile + list[2].where + v);
        const float* row = reinterpret_cast<const float*>(panel + entry->offset);
        F value = broadcast(&entry->value);
        LOGRAD_UNROLL
        for (int v = 0; v < Vectors; ++v) sums[v] = value * load<F>(row + v * W);
        for (const Entry* end = entry++ + list->length; entry != end; ++entry) {
            row = reinterpret_cast<const float*>(panel + entry->offset);
            value = broadcast(&entry->value);
            LOGRAD_UNROLL
            for (int v = 0; v < Vectors; ++v) sums[v] = multiply_add(value, load<F>(row + v * W), sums[v]);
        }
        float* to = tile + list->where;
        LOGRAD_UNROLL
        for (int v = 0; v < Vectors; ++v) store(to + v * W, load<F>(to + v * W) + sums[v]);
    }
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
