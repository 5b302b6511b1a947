// Needs more memory than it may have from the start. (linked with 128 MiB)
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {}
