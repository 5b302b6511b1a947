// Returns a plan of no bytes.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { plan("", 0); }
