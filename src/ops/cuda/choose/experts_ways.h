#pragma once

// The parts of the choice of an expert bank (experts.cc): plain questions about a question.

#include "ops/cuda/choose/experts.h"
#include "ops/cuda/choose/experts_limits.h"

namespace baltoro::cuda::experts_ways {

struct Way {
  ExpertsKernel kernel;
  const char* why;
};

inline bool IsBf16(const RowsFacts& x) {
  return x.type == DType::kBf16;
}

// Whether a kernel of the bank can choose the experts of a token (choice_device.cuh): in the
// products' own kernels, by one warp.
bool KernelCanChoose(const ExpertsQuestion& q);
// Whether the preparation can, and sort their entries (bank_prepare.cu).
bool PreparationCanChoose(const ExpertsQuestion& q);
// Whether a kernel whose blocks all wait for each other may have one on each multiprocessor.
bool OneLaunchFits(const Card& card);

// INT4 groups in whole tiles, for their own kernels.
bool Int4Takes(const ExpertsQuestion& q);
// With the shared experts in the last kernel.
bool Int4EndsWithShared(const ExpertsQuestion& q);
// The shared experts in a launch beside the choice, and the rows of their matrix that a warpgroup
// of it has, so that its blocks are about as many as multiprocessors.
bool Int4BesideTakes(const ExpertsQuestion& q);
int32_t BesideRows(int64_t tokens);
Way Int4Way(const ExpertsQuestion& q);
// Why a way of INT4 does not take the question; null: it does.
const char* Int4Against(const ExpertsQuestion& q, ExpertsKernel kernel);
// Tokens that the way with the sum takes at once; 0: none in this shape.
int32_t Int4SumTokens(const ExpertsQuestion& q);

// FP8 blocks whose inputs are rounded to e4m3.
bool Fp8Takes(const ExpertsQuestion& q);
Way Fp8Way(const ExpertsQuestion& q);
const char* Fp8Against(const ExpertsQuestion& q, ExpertsKernel kernel);  // as Int4Against
int32_t Fp8SumTokens(const ExpertsQuestion& q);
// Few tokens: the down product rounds its input itself, one launch less.
bool Fp8RoundedByDown(const ExpertsQuestion& q);
// Strips of a block of the end of kFp8Entries4; 0: the shape is not for it.
int32_t Fp8EndStrips(int64_t tokens, int64_t hidden, int64_t intermediate);

// The grouped products of any form: rows of a tile, as many as most experts have, so that weights
// are read once; whether the form for many rows takes both matrices.
int32_t GroupedTileRows(const ExpertsQuestion& q);
bool GroupedWide(const ExpertsQuestion& q);

// The parameters of plan.kernel.
void Fill(const ExpertsQuestion& q, ExpertsPlan& plan);

}  // namespace baltoro::cuda::experts_ways
