// Returns bytes that are not a plan.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { plan("\xff\xff\xff\xff this is no plan", 22); }
