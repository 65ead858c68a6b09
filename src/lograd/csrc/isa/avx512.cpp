#define LOGRAD_ISA avx512
#include "isa/fill.isa.h"
