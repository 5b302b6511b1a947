// Says that its plan has two gigabytes.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { plan((const void *)0, 0x7fffffff); }
