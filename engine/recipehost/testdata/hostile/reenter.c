// Makes its plan when it is asked for its version, and again when it is asked for a plan.
#include <stdint.h>
__attribute__((import_module("bigmoe_v1"), import_name("plan"))) void plan(const void *, int32_t);
__attribute__((export_name("bigmoe_plan"))) void bigmoe_plan(void) { plan("\x08\x01", 2); }
__attribute__((export_name("bigmoe_abi_version"))) int32_t bigmoe_abi_version(void) {
	bigmoe_plan();
	return 2;
}
