// Refuses the file with a message as long as it may be.
#include "recipe.h"
static volatile char text[65536];
EXPORT(bigmoe_plan) void bigmoe_plan(void) {
	for (int i = 0; i < sizeof text; i++)
		text[i] = 'x';
	fail(3, text, sizeof text);
}
