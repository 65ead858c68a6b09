// The one place that chooses among instruction sets.

#include <string>

#include "base/cpu.h"
#include "isa/table.h"

namespace lograd {
namespace {

struct Choice {
    const char* name;
    const Kernels& (*table)();
};

// Widest first.
constexpr Choice kChoices[] = {
#ifdef LOGRAD_X86_KERNELS
    {"avx512vnni", avx512vnni::table}, {"avx512", avx512::table}, {"avx2vnni", avx2vnni::table}, {"avx2", avx2::table},
#endif
    {"generic", generic::table},
};

// The kernels of this name, or the widest ones if it is empty; null if this CPU cannot run them.
const Kernels* find(const std::string& name) {
    for (const Choice& choice : kChoices)
        if ((name.empty() || name == choice.name) && cpu_runs(choice.name)) return &choice.table();
    return nullptr;
}

const Kernels*& current() {
    static const Kernels* in_use = find("");
    return in_use;
}

}  // namespace

const Kernels& kernels() { return *current(); }

bool use_isa(const char* name) {
    const Kernels* found = find(name);
    if (found != nullptr) current() = found;
    return found != nullptr;
}

}  // namespace lograd
