// Warns without end.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	for (;;)
		warn("again", 5);
}
