#define LOGRAD_ISA avx512vnni
#define LOGRAD_BASE avx512
#include "isa/vnni.isa.h"
