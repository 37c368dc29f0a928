#pragma once

// Small operations, of which the halves of a layer are composed (composed_state.h). The rules are
// those of ops.h.
//
// "part" is what a rank adds to a sum over ranks: f32; a backend that rounds parts of many rows to
// bf16 adds to them in f32 and rounds the result once.

#include <cstdint>
#include <span>

#include "base/check.h"
#include "ops/attention.h"
#include "ops/context.h"
#include "ops/expert_copies.h"
#include "ops/matrix.h"
#include "ops/router.h"
#include "tensor/tensor_view.h"

namespace baltoro {

struct MlaAttentionArgs {
  TensorView out;     // [T, h * V] act
  TensorView q;       // [T, h, N + P] act, the rope part already rotated
  KvLayerView cache;  // the keys of this step's tokens are already written
  std::span<const AttentionSequence> sequences;
  const void* plan = nullptr;  // of plan_attention for these sequences
  PackedMatrix kv_b;           // [h * (N + V), R]: per head N key rows, then V value rows
  PackedMatrix uk_t;           // h matrices [R, N]: the key rows transposed, for the absorbed form
  float scale = 0;             // softmax scale with the squared yarn mscale
  int32_t heads = 0, nope = 0, rope = 0, value = 0, latent = 0;
  TensorView lse;  // optional [T, h] f32: log of the softmax sum, scale included; -inf and a zero
                   // row if no key is seen
};

// As HeadsAttentionArgs of hidden_state.h has it, behind the projections.
struct HeadAttentionArgs {
  TensorView out;     // [T, h d] act
  TensorView q;       // [T, h, d] act, rotated; the two outer strides are free
  KvLayerView cache;  // in the form of the activation type; this step's keys are already written
  std::span<const AttentionSequence> sequences;
  const void* plan = nullptr;  // of plan_attention for these sequences
  float scale = 0;
  int32_t key_heads = 0;  // g, a divisor of h: heads [i h / g, (i + 1) h / g) read those of i
};

struct ExpertBankArgs {
  TensorView out;        // [T, H] part: out[t] += sum_j weights[t, j] * Expert(ids[t, j])(x[t]),
                         // j in order
  TensorView x;          // [T, H] act
  TensorView ids;        // [T, k] i32, experts, or slots of all ranks (choose_copies)
  TensorView weights;    // [T, k] f32
  PackedMatrix gate_up;  // slots matrices [2 I, H]: gate rows, then up rows
  PackedMatrix down;     // slots matrices [H, I]
  std::span<const int32_t>
      slot_of;  // of each number in `ids`: the slot here; -1: not held here (its share is left out)
};

struct SmallOps {
  DType act = DType::kBf16;

  // out[t] = table[ids[t] - first], zeros where that is no row of the table: another rank's.  out
  // [T, H] f32; table [rows, H] bf16 or f32, row-major; ids [T] i32.
  void (*embed)(const OpContext&, TensorView out, TensorView table, TensorView ids, int64_t first) =
      nullptr;
  // out[i] = x[rows[i]].  x [T, D] part, out [N, D] f32 or, where x is f32, act; rows of out may be
  // strided; rows [N] i32.
  void (*gather_rows)(const OpContext&, TensorView out, TensorView x, TensorView rows) = nullptr;
  // out[rows[i]] = x[i].  x [N, D], out [T, D] f32; rows [N] i32, all different.
  void (*scatter_rows)(const OpContext&, TensorView out, TensorView x, TensorView rows) = nullptr;
  // out = x.  Both f32, contiguous, of one shape.
  void (*copy)(const OpContext&, TensorView out, TensorView x) = nullptr;
  // Zeros.  x contiguous.
  void (*clear)(const OpContext&, TensorView x) = nullptr;
  // out[t, d] = x[t, d] * rsqrt(mean_d(x^2) + eps) * weight[d].  x [T, D] f32 or act, rows may be
  // strided; out [T, D] act or f32, rows may be strided, may alias x; weight [D] f32.
  void (*rms_norm)(const OpContext&, TensorView out, TensorView x, TensorView weight, float eps) =
      nullptr;
  // residual += delta; out = rms_norm(residual).  residual [T, D] f32; delta [T, D] part.
  void (*add_rms_norm)(const OpContext&,
                       TensorView out,
                       TensorView residual,
                       TensorView delta,
                       TensorView weight,
                       float eps) = nullptr;
  // out[t, :] = x[t, :] * W^T.  x [T, k] act, rows may be strided; out [T, n] f32, act or part,
  // rows may be strided.
  void (*linear)(const OpContext&, TensorView out, TensorView x, const PackedMatrix& w) = nullptr;
  // In place on x [T, heads, P] (act or f32, the two outer strides free): pair j of row t by angle
  // positions[t] * inv_j.
  void (*rope)(const OpContext&,
               TensorView x,
               TensorView positions,
               const RopeTable& table) = nullptr;
  // cache[slots[t]] = latent[t] || rope[t], in the form of the cache.  latent [T, R], rope [T, P]
  // act, rows may be strided; slots [T] i64, block * 64 + offset; negative: the row is not written.
  void (*kv_write)(const OpContext&,
                   const KvLayerView& cache,
                   TensorView latent,
                   TensorView rope,
                   TensorView slots) = nullptr;
  void (*mla_attention)(const OpContext&, const MlaAttentionArgs&) = nullptr;
  // On a GPU widths are those of GpuTakesHeadWidth (gpu_limits.h).
  void (*head_attention)(const OpContext&, const HeadAttentionArgs&) = nullptr;
  // out[t, i] = silu(x[t, i]) * x[t, I + i].  x [T, 2 I] f32 or act; out [T, I] act.
  void (*swiglu)(const OpContext&, TensorView out, TensorView x) = nullptr;
  // ids [T, k] i32 and weights [T, k] f32 from logits [T, E] f32 and an optional selection bias [E]
  // f32, best first.
  void (*route)(const OpContext&,
                TensorView ids,
                TensorView weights,
                TensorView logits,
                TensorView bias,
                const RouterParams&) = nullptr;
  // ids [T, k] i32, experts, become slots of all ranks. Which copy of an expert a row goes to
  // follows from what it chose, all of it, and so is the same on all ranks and beside any rows. On
  // a GPU a row that nobody reads, with no experts (-1), keeps none and is not counted.
  void (*choose_copies)(const OpContext&, TensorView ids, const ExpertCopies& copies) = nullptr;
  void (*expert_bank)(const OpContext&, const ExpertBankArgs&) = nullptr;
};

const SmallOps& ReferenceSmallOps();
const SmallOps& CpuSmallOps(DType act);

// Bytes of the operations' memory, a multiple of four, by `copy`.
inline void CopyBytes(
    const SmallOps& ops, const OpContext& context, void* to, const void* from, int64_t bytes) {
  BT_CHECK(bytes % 4 == 0);
  ops.copy(context, TensorView(to, DType::kF32, {1, bytes / 4}),
           TensorView(const_cast<void*>(from), DType::kF32, {1, bytes / 4}));
}

}  // namespace baltoro
