// Passes a key that lies outside its memory.
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { meta_find((const char *)0x7ffffff0, 16); }
