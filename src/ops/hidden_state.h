#pragma once

// The hidden state of a step: what the model computes with, half a layer at a time. A backend owns
// it. How a norm is computed, which rows are rounded or coded and what is written to memory between
// the halves is the backend's affair; the residual stream exists as a tensor only where Residual()
// asks for it.
//
// A half is x + f(norm(x)) for all T rows of the step, f being attention, an MLP or experts. Where
// a model is spread over ranks, the sums over tensor ranks and the exchanges of decode-context
// ranks are a part of the half. Each call queues its work in order; all can be recorded in a graph.
// The tensors given must live until the step has been computed.
//
// Letters as in ops.h.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "ops/attention.h"
#include "ops/context.h"
#include "ops/expert_copies.h"
#include "ops/matrix.h"
#include "ops/router.h"
#include "tensor/tensor_view.h"

namespace baltoro {

class ExpertExchange;
class RankOps;
struct ExpertsHalfArgs;

// The sizes of a step, of this rank: the same for all its layers.
struct StepShape {
  int64_t tokens = 0, logits_rows = 0;  // T, rows of Logits
  int64_t hidden = 0;                   // H
  int64_t q_lora = 0;                   // 0: queries are made of the norm's rows
  int32_t heads = 0;                    // h: of this rank
  int32_t group_heads = 0;              // that it attends for: those of its decode-context group
  int32_t nope = 0, rope = 0, value = 0, latent = 0;
  int64_t intermediate = 0;  // of the widest MLP, the shared experts among them
  int64_t vocab = 0;         // rows of this rank's part of the head
  // Of one layer, which stands for all; null: no layer has experts. Read by `begin` alone.
  const ExpertsHalfArgs* experts = nullptr;
  int32_t num_experts = 0, top_k = 0;  // E, k
  // Of a draft model, whose layer reads embeddings beside the residual stream: residual streams of
  // another model that are projected to its own; 0: of any other model.
  int32_t feature_parts = 0;
  // Of a draft model whose heads have keys of their own (HeadsAttentionArgs): their width, and how
  // many heads keys have. 0: latent attention.
  int32_t head_width = 0, key_heads = 0;
  // Whether a norm is read by products that round its rows (PackedMatrix::quantise_input).
  bool rounds_norms = false;
  // Of a model over ranks.
  RankOps* ranks = nullptr;  // null: alone
  int32_t tensor_ranks = 1, context_ranks = 1;
  // Whether what ranks add to a sum of many rows may be rounded to bf16, as their exchange does it
  // in any case (RankOps::takes_rounded_parts).
  bool rounds_parts = false;
  // Of replicas that share experts: the way to the others, and how many rows each of them has in
  // this step. A step of no tokens takes part in ExpertsHalf alone.
  ExpertExchange* exchange = nullptr;  // null: this replica has all experts
  std::span<const int64_t> group_rows = {};
  // Rows travel to the others rounded to e4m3 with a scale for 128 columns, whatever the experts
  // read; of backends whose rows travel as they are computed it changes nothing.
  bool fp8_dispatch = false;
  // Of steps with rows that are there for their number alone: [T] i64, below 0 of a row that nobody
  // reads. Such a row may be left out of the experts, which are then not read for it. Empty: all
  // are read.
  TensorView slots = {};
};

struct AttentionHalfArgs {
  TensorView norm;  // [H] f32
  float eps = 0;
  // [H] f32, of a draft model's layer (model-family §9.2): its projections read, 2 H wide, the norm
  // of the embeddings that TakeFeatures put beside the stream, and behind it that of the stream.
  // Empty: any other layer's, which reads the norm of the stream alone.
  TensorView beside_norm;
  // [q_lora + R + P, H]: rows of the low-rank query, then of latent and key; where these could not
  // be packed as one, `qkv_a` has the first and `kv_a` the others.
  PackedMatrix qkv_a, kv_a;
  TensorView q_norm, kv_norm;  // [q_lora] f32, empty if that is 0; [R] f32
  float latent_eps = 0;        // of these two
  PackedMatrix q;              // [h (N + P), q_lora], or by H
  PackedMatrix kv_b;           // [g (N + V), R] of the g group heads: N key rows, then V value rows
  PackedMatrix uk_t;           // g matrices [R, N]: the key rows transposed
  PackedMatrix o;              // [H, h V]
  TensorView positions, slots;  // [T] i32, [T] i64
  RopeTable rope;
  KvLayerView cache;
  std::span<const AttentionSequence> sequences;
  const void* plan = nullptr;  // of OpsTable::plan_attention for these sequences
  float scale = 0;             // softmax scale with the squared yarn mscale
};

// Attention of a draft model of Llama's type: heads of width d with keys and values of their own,
// or g of these for several heads each.
struct HeadsAttentionArgs {
  TensorView norm, beside_norm;  // as of AttentionHalfArgs; both are there
  float eps = 0;
  PackedMatrix qkv;             // [(h + 2 g) d, 2 H]: rows of queries, keys, values; of queries and
                                // keys the pairs that are rotated together lie side by side
  PackedMatrix o;               // [H, h d]
  TensorView positions, slots;  // [T] i32, [T] i64
  RopeTable rope;               // of d
  KvLayerView cache;            // `latent`: g d values of keys, rotated; `rope`: g d of values
  std::span<const AttentionSequence> sequences;
  const void* plan = nullptr;  // of OpsTable::plan_attention for these sequences
  float scale = 0;
};

// What a draft model begins with. Row t of the residual stream becomes row rows[t] of the parts
// side by side, times fc; or, without fc, that row of the only part.
struct FeatureArgs {
  std::span<const TensorView> parts;  // [N, H] f32 each: taps of the target, or its own last stream
  TensorView rows;                    // [T] i32
  PackedMatrix fc;                    // [H, parts H]; n 0: none
};

struct DenseHalfArgs {
  TensorView norm;  // [H] f32
  float eps = 0;
  PackedMatrix gate_up, down;  // [2 I, H]: gate rows, then up rows; [H, I]
};

// What is chosen for the rows of a step; all may be pointed elsewhere.
struct ChosenExperts {
  TensorView ids, weights;  // [T, k] i32, f32
  TensorView logits, bias;  // [T, E] f32; [E] f32 or empty: what `ids` and `weights` are made of
  RouterParams params;
  bool made = true;  // false: ids and weights will be written, from logits and bias
};

// For tests and benchmarks: sees, and may change, what experts are about to be computed with.
class ExpertsTap {
 public:
  virtual ~ExpertsTap() = default;
  // Whether ids and weights must have been made when Look is called.
  virtual bool needs_ids() const = 0;
  virtual void Look(const OpContext&, ChosenExperts&) = 0;
};

struct ExpertsHalfArgs {
  TensorView norm;  // [H] f32
  float eps = 0;
  PackedMatrix router;     // [E, H]
  TensorView router_bias;  // optional [E] f32
  RouterParams params;
  PackedMatrix gate_up, down;  // slots matrices [2 I, H]: gate rows, then up rows; [H, I]
  // [E] logical expert -> slot; with `copies`: slot of all ranks -> slot. -1: not held here.
  std::span<const int32_t> slot_of;
  ExpertCopies copies = {};  // of balanced experts
  // The shared experts, which see every token; n 0: none.
  PackedMatrix shared_gate_up, shared_down;  // [2 I', H], [H, I']
  ExpertsTap* tap = nullptr;
};

// The half that follows on this rank, so that a backend may begin its norm in this one. Nothing:
// the end of the stage.
struct NextHalf {
  TensorView norm;  // [H] f32
  float eps = 0;
  // Which half it is; of a dense one neither.
  const AttentionHalfArgs* attention = nullptr;
  const ExpertsHalfArgs* experts = nullptr;

  static NextHalf Of(const AttentionHalfArgs& args) {
    return {.norm = args.norm, .eps = args.eps, .attention = &args};
  }
  static NextHalf Of(const ExpertsHalfArgs& args) {
    return {.norm = args.norm, .eps = args.eps, .experts = &args};
  }
  static NextHalf Of(const DenseHalfArgs& args) { return {.norm = args.norm, .eps = args.eps}; }
};

struct LogitsArgs {
  TensorView logits;  // [rows, vocab of all ranks] f32, written
  TensorView rows;    // [rows] i32: which rows of the step
  TensorView norm;    // [H] f32
  float eps = 0;
  PackedMatrix head;                // [vocab of this rank, H]
  std::span<const int64_t> widths;  // of every tensor rank's part of the head
};

class HiddenState {
 public:
  virtual ~HiddenState() = default;

  // From now on `tell` hears, a line an operation, which kernel computes it and why; of a backend
  // that chooses none it hears nothing.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): who overrides it keeps it.
  virtual void Explain(std::function<void(const std::string&)> tell) { static_cast<void>(tell); }

  // Row t becomes table[ids[t] - first], summed over the tensor ranks, of which each has some rows
  // of the vocabulary; zeros where nobody has it.  table [rows, H] bf16 or f32, of this rank, from
  // token `first` on; ids [T] i32.
  virtual void Embed(TensorView table, TensorView ids, int64_t first) = 0;
  // Row rows[i] becomes values[i].  values [N, H] f32; rows [N] i32, all different.
  virtual void Override(TensorView values, TensorView rows) = 0;
  // Behind Embed, of a draft model: what was embedded moves beside the residual stream.
  virtual void TakeFeatures(const FeatureArgs&) = 0;
  virtual void AttentionHalf(const AttentionHalfArgs&, const NextHalf& next) = 0;
  virtual void HeadsAttentionHalf(const HeadsAttentionArgs&, const NextHalf& next) = 0;
  virtual void DenseHalf(const DenseHalfArgs&, const NextHalf& next) = 0;
  virtual void ExpertsHalf(const ExpertsHalfArgs&, const NextHalf& next) = 0;
  // The residual stream [T, H] f32, contiguous, complete: to be sent to another stage, or written
  // before the first half.
  virtual TensorView Residual() = 0;
  // out [T, H] f32, contiguous, becomes the residual stream as it is between two halves. What is
  // computed behind does not change by a bit.
  virtual void Tap(TensorView out) = 0;
  // Ends the step.  Of no rows nothing is written.
  virtual void Logits(const LogitsArgs&) = 0;
};

}  // namespace baltoro
