// Divides by zero.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	volatile int zero = 0;
	plan((void *)(100 / zero), 1);
}
