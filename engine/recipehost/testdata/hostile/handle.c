// Uses a metadata handle that it was not given.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { meta_int(12345, 0); }
