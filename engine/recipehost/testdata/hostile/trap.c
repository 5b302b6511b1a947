// Executes the unreachable instruction.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { __builtin_trap(); }
