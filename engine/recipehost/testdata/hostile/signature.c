// Exports its plan as a function that wants to be given something.
#include "recipe.h"
EXPORT(bigmoe_plan) int64_t bigmoe_plan(int64_t a, double b) { return a + b; }
