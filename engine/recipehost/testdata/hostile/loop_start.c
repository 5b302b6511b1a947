// Never gets as far as its version.
#include "recipe.h"
EXPORT(_initialize) void initialize(void) {
	for (volatile int i = 0;; i++) {
	}
}
EXPORT(bigmoe_plan) void bigmoe_plan(void) {}
