// Uses a tensor index beyond the last.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { tensor_type(1 << 20); }
