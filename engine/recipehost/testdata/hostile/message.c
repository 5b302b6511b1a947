// Fails with a message of a megabyte.
#include "recipe.h"
static char text[1 << 20];
EXPORT(bigmoe_plan) void bigmoe_plan(void) { fail(1, text, sizeof text); }
