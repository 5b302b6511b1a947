// Says that its plan is longer than its memory.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { plan((const void *)0, 0x00f00000); }
