// Never returns.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	for (volatile int i = 0;; i++) {
	}
}
