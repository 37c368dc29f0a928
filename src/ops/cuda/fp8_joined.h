#pragma once

// Parts of the FP8 bank (fp8_bank.h): the down product of many rows and the sum over a token's
// experts in one kernel, so that the shares of experts stay in the L2 (fp8_down_sum.cu).

#include "ops/cuda/moe_internal.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// Tokens that the kernel takes at once; 0: none of this shape, or not on this device. `down` as
// Fp8BankTakes has it.
int32_t Fp8JoinedTokens(const PackedMatrix& down, int32_t top_k);

// What MoeRows' joined fields are to be, beside memory: blocks of the kernel and the units of 16
// rows that one has room for.
int32_t Fp8JoinedBlocks();
int32_t Fp8JoinedUnits(int32_t slots, int32_t entries, int32_t blocks);
// Of the ring of shares.
int64_t Fp8JoinedShareBytes(int32_t entries, int64_t hidden);

struct Fp8Joined {
  PackedMatrix down;                     // slots matrices [H, 256]
  const void* x = nullptr;               // e4m3 codes [T k, 256] in sorted order
  const float* x_scales = nullptr;       // [T k, 2]
  const float* route_weights = nullptr;  // [T k]
  MoeRows rows;                          // routed, with the joined fields
  void* shares = nullptr;                // Fp8JoinedShareBytes
  TensorView out;                        // [T, H] f32 or bf16, added to; 16-byte aligned rows
};
// Reads the routing's tables before it waits for the kernel ahead: behind a kernel alone that lets
// others start only once it has waited for the routing (docs/kernels/decode-step.md, point 4).
void LaunchFp8Joined(const Fp8Joined& args, cudaStream_t stream);

}  // namespace baltoro::cuda
