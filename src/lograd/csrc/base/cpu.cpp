#include "base/cpu.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#if defined(__x86_64__) || defined(_M_X64)
#define LOGRAD_X86
#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace lograd {
namespace {

#ifdef LOGRAD_X86
struct Registers {
    std::uint32_t a, b, c, d;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t part = 0) {
    Registers r{};
#if defined(_MSC_VER) && !defined(__clang__)
    int regs[4] = {};
    __cpuid(regs, 0);
    if (static_cast<std::uint32_t>(regs[0]) < leaf) return r;
    __cpuidex(regs, static_cast<int>(leaf), static_cast<int>(part));
    r = {std::uint32_t(regs[0]), std::uint32_t(regs[1]), std::uint32_t(regs[2]), std::uint32_t(regs[3])};
#else
    __get_cpuid_count(leaf, part, &r.a, &r.b, &r.c, &r.d);
#endif
    return r;
}

// The register state that the operating system saves.  A CPU with AVX under a kernel that does not save it cannot use it.
std::uint32_t saved_state() {
#if defined(_MSC_VER) && !defined(__clang__)
    return static_cast<std::uint32_t>(_xgetbv(0));
#else
    std::uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
#endif
}
#endif

bool all_of(const std::vector<std::string>& have, std::initializer_list<const char*> wanted) {
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](const char* name) { return std::find(have.begin(), have.end(), name) != have.end(); });
}

}  // namespace

std::vector<std::string> cpu_features() {
    std::vector<std::string> found;
#ifdef LOGRAD_X86
    const auto bit = [](std::uint32_t word, int n) { return (word >> n & 1) != 0; };
    const Registers one = cpuid(1), seven = cpuid(7), more = seven.a >= 1 ? cpuid(7, 1) : Registers{};
    const std::uint32_t saved = bit(one.c, 27) ? saved_state() : 0;
    if ((saved & 0x06) == 0x06) {  // xmm and ymm
        if (bit(seven.b, 5)) found.push_back("avx2");
        if (bit(one.c, 12)) found.push_back("fma");
        if (bit(one.c, 29)) found.push_back("f16c");
        if (bit(more.a, 4)) found.push_back("avxvnni");
    }
    if ((saved & 0xe6) == 0xe6) {  // and zmm with the masks
        if (bit(seven.b, 16)) found.push_back("avx512f");
        if (bit(seven.b, 30)) found.push_back("avx512bw");
        if (bit(seven.b, 31)) found.push_back("avx512vl");
        if (bit(seven.b, 17)) found.push_back("avx512dq");
        if (bit(seven.c, 11)) found.push_back("avx512vnni");
    }
#elif defined(__aarch64__) || defined(_M_ARM64)
    found.push_back("neon");  // part of the 64-bit ARM baseline
#endif
    return found;
}

bool cpu_runs(const std::string& isa) {
    const auto have = cpu_features();
    if (isa == "avx512vnni") return cpu_runs("avx512") && all_of(have, {"avx512vnni"});
    if (isa == "avx2vnni") return cpu_runs("avx2") && all_of(have, {"avxvnni"});
    if (isa == "avx512") return all_of(have, {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c"});
    if (isa == "avx2") return all_of(have, {"avx2", "fma", "f16c"});
    return isa == "generic";
}

std::string compiler() {
#if defined(__clang__)
    return "Clang " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__) + "." +
           std::to_string(__clang_patchlevel__);
#elif defined(__GNUC__)
    return "GCC " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__) + "." +
           std::to_string(__GNUC_PATCHLEVEL__);
#elif defined(_MSC_VER)
    return "MSVC " + std::to_string(_MSC_VER / 100) + "." + std::to_string(_MSC_VER % 100);
#else
    return "unknown";
#endif
}

}  // namespace lograd
