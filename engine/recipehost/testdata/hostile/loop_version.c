// Never gets to say its version.
#include <stdint.h>
__attribute__((export_name("bigmoe_abi_version"))) int32_t bigmoe_abi_version(void) {
	for (volatile int i = 0;; i++) {
	}
}
__attribute__((export_name("bigmoe_plan"))) void bigmoe_plan(void) {}
