#define LOGRAD_ISA avx2
#include "isa/fill.isa.h"
