// Speaks an ABI of the future.
#define VERSION 3
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { plan("", 0); }
