// Asks the same question forever.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	while (tensor_count() >= 0) {
	}
}
