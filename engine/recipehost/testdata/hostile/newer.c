// Returns a plan of a schema that does not exist yet.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { plan("\x08\x63\x1a\x05newer", 9); }
