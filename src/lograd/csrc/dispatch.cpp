#include "kernels.h"

#include <cstring>

#include "cpu.h"

namespace lograd {
namespace {

const Kernels* find(const char* name) {
    const std::string level = isa_level();
    if (std::strcmp(name, "generic") == 0) return &generic_kernels();
#ifdef LOGRAD_X86_KERNELS
    if (std::strcmp(name, "avx2") == 0 && (level == "avx2" || level == "avx512")) return &avx2_kernels();
    if (std::strcmp(name, "avx512") == 0 && level == "avx512") return &avx512_kernels();
#endif
    return nullptr;
}

const Kernels* widest() {
    for (const char* name : {"avx512", "avx2"})
        if (const Kernels* found = find(name)) return found;
    return &generic_kernels();
}

const Kernels*& current() {
    static const Kernels* in_use = widest();
    return in_use;
}

}  // namespace

const Kernels& kernels() { return *current(); }

const Kernels* use_isa(const char* name) {
    const Kernels* found = *name == '\0' ? widest() : find(name);
    if (found != nullptr) current() = found;
    return found;
}

}  // namespace lograd
