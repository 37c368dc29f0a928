#pragma once

// Operations that join several small ones, and what operations hand to each other beside tensors:
// of this backend alone. The letters in shapes are those of ops.h.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "ops/compose/small_ops.h"

namespace baltoro::cuda {

// What lies between the first products of attention and the second, in one operation: rms_norm of
// the low-rank query in place, rms_norm of the latent, rope of the shared key, kv_write of both.
// qkv_a may keep the latent and the key as they were. With `q`, the second product of the queries
// and their rope too; qkv_a may then keep the low-rank query as it was.
struct AttentionInputArgs {
  TensorView qkv_a;      // [T, q_lora + R + P] act, rows may be strided
  TensorView q_norm;     // [q_lora] f32; empty if q_lora is 0
  TensorView kv_norm;    // [R] f32
  TensorView positions;  // [T] i32
  TensorView slots;      // [T] i64
  RopeTable rope;
  KvLayerView cache;
  float eps = 0;
  TensorView q = {};  // optional [T, h, N + P] act: the norm's result by q_weight^T, rope part
                      // rotated; q_lora is not 0
  PackedMatrix q_weight = {};  // [h * (N + P), q_lora]
};

// add_rms_norm of few rows, shared by the operations around it: one adds what it computes to the
// residual and writes rows and squares, the next takes rows for its x and divides what comes out:
//   rms_norm(residual)[t] = rows[t] / sqrt(sum of squares[t] / H + eps), rounded elsewhere.
struct BegunNorm {
  static constexpr int64_t kParts = 128;
  static constexpr int64_t kRowsMax = 16;  // T of a step that is asked for it
  TensorView residual;                     // [T, H] f32
  TensorView weight;                       // [H] f32
  TensorView rows;                         // [T, H] act: residual * weight
  TensorView squares;  // [T, kParts] f32: add up to the sum of the residual's squares
  float eps = 0;
};

// The attention half of a layer in one operation: linear by qkv_a, attention_inputs, mla_attention,
// linear by o. What these hand to each other (inputs.qkv_a, inputs.q, attention.q and .out) may be
// left unwritten.
struct AttentionLayerArgs {
  TensorView x;                       // [T, H] act
  const BegunNorm* before = nullptr;  // its rows instead of x, as LinearFromNorm
  PackedMatrix qkv_a;                 // [q_lora + R + P, H]
  AttentionInputArgs inputs;          // with q
  MlaAttentionArgs attention;
  PackedMatrix o;                     // [H, h * V]
  TensorView out;                     // [T, H] f32
  const BegunNorm* behind = nullptr;  // instead of out, as LinearToNorm
};

// What SmallOps::route chooses a step's experts by.
struct ExpertChoice {
  TensorView logits;  // [T, E] f32
  TensorView bias;    // optional [E] f32
  RouterParams params;
};

// SmallOps::expert_bank, and what may stand beside it.
struct ExpertBankArgs {
  TensorView out;        // [T, H] part: out[t] += sum_j weights[t, j] * Expert(ids[t, j])(x[t]),
                         // j in order
  TensorView x;          // [T, H] act
  TensorView ids;        // [T, k] i32, logical expert ids
  TensorView weights;    // [T, k] f32
  PackedMatrix gate_up;  // slots matrices [2 I, H]: gate rows, then up rows
  PackedMatrix down;     // slots matrices [H, I]
  std::span<const int32_t>
      slot_of;  // [E] logical expert -> slot; -1: not held here (its share is left out)
  // The shared experts, if `shared` is given. Then `out` is not
  // added to but written: out[t] = shared_down * (swiglu of shared[t]) + the sum above; a part of
  // bf16 may hold the first term, rounded, before the sum is added.
  TensorView shared = {};         // [T, 2 I'] act: their first product, gate then up
  PackedMatrix shared_down = {};  // [H, I']
  // Where the plan has the norm (PlanBank): what would be written to `out` is added to a residual
  // instead.
  const BegunNorm* norm = nullptr;
  // Where the plan chooses: ids and weights are not made yet but here, and written.
  const ExpertChoice* choice = nullptr;
};

// The first products of a layer of experts, and its routing: as linear, then linear and route.
struct MoeInputArgs {
  TensorView shared;            // [T, 2 I'] act, written
  TensorView ids;               // [T, k] i32, written
  TensorView weights;           // [T, k] f32, written
  TensorView logits;            // [T, E] f32, holds the product afterwards
  TensorView x;                 // [T, H] act
  PackedMatrix shared_gate_up;  // [2 I', H]
  PackedMatrix router;          // [E, H]
  TensorView bias;              // optional [E] f32
  RouterParams params;
  // Where both matrices take it (PlanFromNorm): x is written, and made of this before.
  const BegunNorm* norm = nullptr;
  bool chooses = true;  // false: ids and weights need not be written
};

// Rows as products that round them (ReadsCodes, choose/quantise.h) take them, so that they are
// rounded once for all that read them. Memory is the caller's; what lies in it is between a
// backend's operations: a norm writes codes of kFp8Block with its rows, a product that is given
// these rows takes them. Who else writes the rows forgets `of`.
struct RoundedRows {
  void* codes = nullptr;     // [T, H] bytes; T, H of the largest norm
  float* scales = nullptr;   // [T, ScalesOfCodes]
  int64_t width = 0;         // H, a multiple of 128
  const void* of = nullptr;  // the rows that the codes are of; null: none
  int64_t rows = 0, stride = 0;
  WeightForm form = WeightForm::kFp8Block;  // of who reads such codes
};

// Rows of a norm once more, in the order of columns in which a backend's expert bank reads many of
// them. Memory is the caller's; add_rms_norm writes it with its rows and says whose copy it is, the
// bank that is given these rows takes it.
struct OrderedRows {
  void* data = nullptr;      // [T, H] act; null: not wanted
  const void* of = nullptr;  // the rows that it is a copy of; null: none
  int64_t rows = 0, stride = 0;
};

// What OpContext::beside points to; null: nothing of it.
struct Beside {
  RoundedRows* rounded = nullptr;
  // Rows of replicas, which came as codes: in their own memory these lie, not the rows.
  const RoundedRows* gathered = nullptr;
  OrderedRows* ordered = nullptr;  // of the norm ahead of an expert bank, and of the bank
  const std::function<void(const std::string&)>* tell = nullptr;  // launch/explain.h
};

inline RoundedRows* RoundedOf(const OpContext& ctx) {
  return ctx.beside == nullptr ? nullptr : static_cast<const Beside*>(ctx.beside)->rounded;
}
inline const RoundedRows* GatheredOf(const OpContext& ctx) {
  return ctx.beside == nullptr ? nullptr : static_cast<const Beside*>(ctx.beside)->gathered;
}
inline OrderedRows* OrderedOf(const OpContext& ctx) {
  return ctx.beside == nullptr ? nullptr : static_cast<const Beside*>(ctx.beside)->ordered;
}

}  // namespace baltoro::cuda
