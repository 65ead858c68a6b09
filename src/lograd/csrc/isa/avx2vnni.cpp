#define LOGRAD_ISA avx2vnni
#define LOGRAD_BASE avx2
#include "isa/vnni.isa.h"
