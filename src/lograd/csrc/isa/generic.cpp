#define LOGRAD_ISA generic
#include "isa/fill.isa.h"
