// Needs more memory than it may have from the start.
// flags: -Wl,--initial-memory=134217728
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {}
