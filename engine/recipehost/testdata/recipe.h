// The calls of docs/recipe-abi.md for the modules in this folder.
#define BIGMOE_ABI_ONLY
#include "../../../sdk/recipe/c/bigmoe.h"

#ifndef VERSION
#define VERSION 2
#endif

EXPORT(bigmoe_abi_version) int32_t bigmoe_abi_version(void) { return VERSION; }
