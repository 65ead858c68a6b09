// A set that adds instructions for products of bytes to LOGRAD_BASE, whose other kernels it takes as they are.

#pragma once

#include "isa/table.h"
#include "kernels/integer/integer.isa.h"

#define LOGRAD_TEXT_OF(name) #name
#define LOGRAD_TEXT(name) LOGRAD_TEXT_OF(name)

namespace lograd {
namespace LOGRAD_ISA {

const Kernels& table() {
    static const Kernels kernels = [] {
        Kernels all = LOGRAD_BASE::table();
        all.name = LOGRAD_TEXT(LOGRAD_ISA);
        all.integer = kInteger;
        return all;
    }();
    return kernels;
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
