// Speaks an ABI of the future and uses it.
#define VERSION 3
#include "recipe.h"
HOST(tensor_bytes) int64_t tensor_bytes(int32_t index);
EXPORT(bigmoe_plan) void bigmoe_plan(void) { plan("", tensor_bytes(0)); }
