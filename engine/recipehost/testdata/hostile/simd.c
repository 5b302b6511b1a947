// Uses vector instructions.
// flags: -msimd128
#include "recipe.h"
typedef int32_t v4 __attribute__((vector_size(16)));
static volatile v4 sum;
EXPORT(bigmoe_plan) void bigmoe_plan(void) { sum = sum * sum; }
