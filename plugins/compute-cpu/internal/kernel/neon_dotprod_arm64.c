//go:build cgo

// Products for processors with the dot product instructions (optional from Armv8.2, always there from Armv8.4).

#include "neon_arm64.h"

#include <arm_neon.h>

#ifdef __ARM_FEATURE_DOTPROD
#define TARGET
#elif defined(__clang__)
#define TARGET __attribute__((target("dotprod")))
#else
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif

#define MATMUL kernel_neon_dotprod_matmul
#define dot vdotq_s32
#define DOT_LANE vdotq_laneq_s32

#include "neon_products_arm64.h"
