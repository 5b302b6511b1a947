// Wants dimensions written outside its memory.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { tensor_dims(0, (uint64_t *)0xfffffff8); }
