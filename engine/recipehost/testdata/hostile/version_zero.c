// Speaks an ABI that never was.
#define VERSION 0
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { plan("", 0); }
