#pragma once

// What nearly every kernel of an expert bank uses: instructions, INT4 values, SiLU, the launch.

#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/layout/int4_widen_device.cuh"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/rows/silu_device.cuh"
