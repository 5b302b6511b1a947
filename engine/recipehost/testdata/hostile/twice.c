// Returns two plans.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	plan("\x08\x01", 2);
	plan("\x08\x01", 2);
}
