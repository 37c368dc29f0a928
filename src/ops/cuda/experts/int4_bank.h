#pragma once

// A bank of experts on one GPU, INT4 weights (group 32, bf16 scales) by bf16 activations:
//
//   out[t] += sum_j weights[t, j] * Down(SiLU(Gate(x[t])) * Up(x[t])) of expert ids[t, j], j in
//   order
//
// Kernels: entries sorted (route/bank_sort.cu, bank_prepare.cu), gate/up product with SiLU * mul,
// down product times the routing weight, sum over j; the grouped form first reorders x, the
// streaming one by digits first makes digits of x. They are chained by programmatic dependent
// launch and are capturable in a graph: nothing is allocated, no host work depends on device data.
//
// Products take bf16 operands and sum in f32, but for those by digits (int4_digits.cuh); the middle
// activation [T k, I] and each expert's weighted share [T k, H] are rounded to bf16, the sum over j
// is f32, with what `out` held. Which form is taken, and of what size, says the plan
// (choose/experts.h). Forms of the products, and the ways of a plan that have them:
//   - streaming (small T; kInt4Entries, kInt4Streaming, kInt4Digits): weights are the rows of the
//     matrix instruction, so that few tokens waste nothing; bound by the bytes of the chosen
//     experts. mma.m16n8k16 in bf16; by digits m16n8k32 in integers;
//   - grouped (large T; kInt4Grouped): wgmma, weights widened in registers;
//   - with the sum (kInt4GroupedSum): grouped, with the down product and the sum in one kernel that
//     keeps shares in the L2 (I = 256); more tokens than it takes at once go in equal parts one
//     after the other. Of a middling number of tokens gate/up has smaller tiles.
// For a number of tokens each form gives a row the same bits whatever rows are beside it; the forms
// differ by rounding.
//
// Floor of the streaming form: distinct experts * (Int4PackedBytes(2 I, H) + Int4PackedBytes(H, I))
// bytes over the card's read bandwidth. Of the grouped form: T k * 6 I H operations over the card's
// bf16 matrix rate.

#include <cuda_bf16.h>

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/choose/experts.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/norm_begun.h"

namespace baltoro::cuda {

struct MoeShape {
  int32_t slots = 0;         // expert matrices held, at most 1024
  int32_t hidden = 0;        // H, a multiple of 128
  int32_t intermediate = 0;  // I, a multiple of 128
  int32_t top_k = 0;         // k, 1..32
  int32_t max_tokens = 0;    // T at most
  bool orders = true;  // the workspace has room for what MoeInt4Args::ordered may give instead
};

// How the bank chooses the experts itself, by sigmoid scores: in its first kernel, or while
// it prepares up to 256 tokens (bank_prepare.h).
struct MoeChoice {
  const float* logits = nullptr;  // [T, experts]; null: ids and weights are given
  int64_t logits_stride = 0;
  const float* bias = nullptr;  // optional [experts]
  int32_t experts = 0, top_k = 0;
  bool normalise = false;
  float scaling = 1;
  int32_t* ids = nullptr;    // [T, k], written
  float* weights = nullptr;  // [T, k], written
};

struct MoeInt4Args {
  const __nv_bfloat16* x = nullptr;  // [T, H], 16-byte aligned rows
  int64_t x_stride = 0;              // elements from one row to the next, a multiple of 8
  // x once more, rows without gaps, columns as matrix_order.cuh says; null: made where it is read.
  const __nv_bfloat16* ordered = nullptr;
  const int32_t* ids = nullptr;      // [T, k] logical experts; outside [0, experts): left out
  const float* weights = nullptr;    // [T, k]
  const int32_t* slot_of = nullptr;  // device [experts]: expert -> slot, -1: not held here; null:
                                     // experts are slots
  int32_t experts = 0;               // logical experts
  int32_t tokens = 0;                // T
  const void* gate_up = nullptr;     // slots matrices [2 I, H], int4_layout.h, 128-byte aligned
  const void* down = nullptr;        // slots matrices [H, I]
  float* out = nullptr;              // [T, H], added to
  __nv_bfloat16* rounded_out = nullptr;  // instead of `out`; without `shared`
  int64_t out_stride = 0;                // elements; a row is a multiple of 16 bytes
  void* workspace = nullptr;             // MoeWorkspaceBytes(shape), 256-byte aligned
  int64_t workspace_bytes = 0;
  // The shared experts, where the plan has them in the bank; then `out` is written, not added to.
  const __nv_bfloat16* shared = nullptr;  // [T, 2 I'], their gate, then up; 16-byte aligned rows
  int64_t shared_stride = 0;
  const __nv_bfloat16* shared_down = nullptr;  // [H, I'], 16-byte aligned
  int32_t shared_intermediate = 0;             // I'
  BegunNormArgs norm = {};  // with `shared`: what would be written to `out` goes there
  MoeChoice choice = {};
  void* board = nullptr;  // of the ways of one launch: RankState::board
};

Result<int64_t> MoeWorkspaceBytes(const MoeShape& shape);

// Enqueues the bank's kernels as planned; where a preparation chooses, behind LaunchMoePrepare with
// the same workspace, and LaunchMoeSharedAtChoice where that makes digits. T == 0 is a no-op.
Status LaunchMoeInt4(const MoeShape& shape,
                     const MoeInt4Args& args,
                     const ExpertsPlan& plan,
                     const LaunchStream& stream);

}  // namespace baltoro::cuda
