// Refuses the file with a kind of failure that does not exist.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { fail(77, "not me", 6); }
