// Returns without a plan.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {}
