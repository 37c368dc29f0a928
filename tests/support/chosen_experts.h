#pragma once

// bf16 held to float32 with the same experts: a rounding that tips the choice of an expert moves a
// token far, and would hide what all other roundings do. One table notes the experts that each call
// of its router chooses; the other makes the same choices again, in the same order of calls. Tables
// are plain functions, so there is one list of notes for the process; one thread at a time.

#include "ops/ops.h"

namespace baltoro::test {

const OpsTable& NotingFloat32Ops();
const OpsTable& FollowingBf16Ops();

void ForgetExperts();  // before a run with the noting table
void RewindExperts();  // before each run with the following table

}  // namespace baltoro::test
