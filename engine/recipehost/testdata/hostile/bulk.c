// Copies with one instruction from beyond its memory.
// flags: -mbulk-memory
#include "recipe.h"
EXPORT(bigmoe_plan) void bigmoe_plan(void) { __builtin_memcpy((void *)16, (void *)0x7ffffff0, (uint32_t)tensor_count() << 20); }
