// The module lograd._native: what it says of itself, and all its functions.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "base/cpu.h"
#include "base/magnitudes.h"
#include "bind/bind.h"
#include "isa/table.h"

NB_MODULE(_native, m) {
    m.attr("INTERFACE") = LOGRAD_INTERFACE;
    m.attr("BINS_PER_OCTAVE") = lograd::kBinsPerOctave;
    lograd::Functions functions(m);
    functions.other("compiler", &lograd::compiler);
    functions.other("cpu_features", &lograd::cpu_features);
    functions.other("isa_level", [] { return std::string(lograd::kernels().name); });
    functions.other("use_isa", [](const std::string& name) { return lograd::use_isa(name.c_str()); });
    lograd::bind_magnitudes(functions);
    lograd::bind_elementwise(functions);
    lograd::bind_rows(functions);
    lograd::bind_codes(functions);
    lograd::bind_blocks(functions);
    lograd::bind_sparse(functions);
    lograd::bind_integer(functions);
    lograd::bind_levels(functions);
    lograd::bind_layer(functions);
    lograd::bind_normalization(functions);
    lograd::bind_learned(functions);
    lograd::bind_packets(functions);
}
