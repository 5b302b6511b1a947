// Reads a string as a number.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { meta_int(meta_find("general.architecture", 20), 0); }
