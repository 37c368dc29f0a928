#pragma once

// The contract of every operation. `reference/` defines right with plain loops; `cpu/` and `cuda/`
// are products and are held to it. A backend fills an OpsTable; operations are coarse (a whole MLA
// attention, a whole expert bank) so that each backend may fuse.
//
// Letters in shapes: T tokens (rows) of the step, H hidden, h heads, R latent (512), P rope (64), N
// nope (128), V value head (128), I intermediate, E experts, k experts a token.
//
// "act" is the activation type of the context: bf16 in products, f32 in float32 mode. The residual
// stream is f32 in both. Sums run in f32. A row of any output depends on that row's inputs alone,
// bit for bit: never on how many other rows are computed with it, nor on the number of threads.
//
// Shapes are checked once, with BT_CHECK, by the backend; T == 0 is a no-op everywhere. Outputs
// never alias inputs unless said. Called from one thread; the backend spreads the work over its
// own.
//
// Tensors, matrices and the cache lie in the backend's memory (OpsTable::memory); spans are read
// from host memory, before the call returns. A GPU's operations are queued in the order of the
// calls: only `upload`, `plan_attention`, `sample` and `wait` touch the host, the others can be
// recorded in a graph. There the way a sum is cut, and so its last bits, may depend on T.
//
// "part" is what a rank adds to a sum over ranks: f32, or bf16 in steps of at least
// OpsTable::rounded_part_rows_min rows, where the ranks take that (RankOps::takes_rounded_parts).
// What is added to a part of bf16 is added in f32, and the result rounded once.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "tensor/kv_form.h"
#include "tensor/tensor_view.h"
#include "tensor/weight_form.h"

namespace baltoro {

// A weight matrix [n, k] (y = x * W^T, out by in) in the layout of the backend that packed it, its
// scales beside its elements. A batch of `count` equal matrices lies one after the other,
// `bytes / count` each, so that each expert is one contiguous slab.
//
// What a product with each form computes, with x as given and sums in f32 (model-family §3):
//   kF32, kBf16   sum_k x[k] w[n, k]
//   kInt4Group    sum over groups g of 32 k: scale[n, g] * sum_k x[k] q[n, k]; x is not rounded
//   kFp8Block     sum over blocks b of 128 k: scale[n, b] * sum_k x[k] q[n, k]; with
//                 `quantise_input` x[k] is e4m3(x[k] / s[b]) and the sum is multiplied by s[b],
//                 s[b] = max(|x| of the block, 1e-4) / 448
//   kInt8, kInt4  s * scale[n] * sum_k i8(x[k] / s) q[n, k], s = max |x| of the row / 127 (a row of
//                 zeros gives zeros), i8 to nearest even; the sum is an exact integer
//   kInt8Static   scale[n] * (sum_k i8(x[k] / input_scale + input_offset) q[n, k] + bias[n]), i8
//                 clamped to [-128, 127]
struct PackedMatrix {
  const void* data = nullptr;
  WeightForm form = WeightForm::kBf16;
  int64_t n = 0;  // rows of one matrix: outputs
  int64_t k = 0;  // columns: inputs
  int64_t count = 1;
  int64_t stride_bytes = 0;                 // from one matrix to the next
  bool quantise_input = false;              // kFp8Block
  float input_scale = 1, input_offset = 0;  // kInt8Static

  PackedMatrix at(int64_t i) const {
    PackedMatrix one = *this;
    one.data = static_cast<const char*>(data) + i * stride_bytes;
    one.count = 1;
    return one;
  }
};

// Whole rows of a matrix as a checkpoint stores them (model-family §3), from which a backend packs.
struct StoredRows {
  WeightForm form = WeightForm::kBf16;
  int64_t rows = 0;
  int64_t k = 0;
  // [rows, k] f32, bf16, e4m3 bytes or i8; kInt4Group u32 [rows, k / 8], lowest nibble first, plus
  // 8; kInt4 [rows / 2, k] bytes, even row in the low nibble, two's complement.
  const void* values = nullptr;
  // kFp8Block f32 [ceil(rows / 128), ceil(k / 128)], the first block begins with the first row;
  // kInt4Group bf16 [rows, k / 32]; kInt8, kInt4, kInt8Static f32 [rows].
  const void* scales = nullptr;
  const int32_t* bias = nullptr;  // kInt8Static [rows]
};

// Plain rows [rows, k], contiguous.
inline StoredRows RowsOf(const TensorView& plain) {
  return {.form = PlainForm(plain.dtype),
          .rows = plain.dim(0),
          .k = plain.dim(1),
          .values = plain.data};
}

// Interleaved rotary embedding of pairs (0,1), (2,3)...; built once by the model from model-family
// §2.2.
struct RopeTable {
  const float* cos = nullptr;  // [positions, P/2], already multiplied by the yarn cos/sin factor
  const float* sin = nullptr;
  int64_t positions = 0;
  int64_t dim = 0;  // P
};

// One layer of the paged cache: [num_blocks, 64, token_bytes()], tokens in the form given: the
// normalised latent, then the rotated key. What attention computes with are the values that the
// form gives back; a backend may round them to the activation type.
struct KvLayerView {
  void* data = nullptr;
  KvForm form = KvForm::kBf16;
  int64_t num_blocks = 0;
  int64_t latent = 0, rope = 0;  // R, P
  float scale = 1;               // of kFp8: positive
  static constexpr int64_t kBlockTokens = 64;

  int64_t token_bytes() const { return KvTokenBytes(form, latent, rope); }
};

// One sequence of the step, as attention sees it.
struct AttentionSequence {
  int32_t query_begin = 0;  // rows [query_begin, query_begin + query_count) of q and out
  int32_t query_count = 0;
  int32_t first_position = 0;  // position of the first query token; the others follow
  int32_t absorbed_from =
      0;  // query tokens at positions >= this use the absorbed form, the others the expanded one
  std::span<const int32_t> blocks;  // physical blocks that hold keys
  std::span<const int32_t>
      block_positions;    // position of the first key of each; empty: block b starts at 64 b
  int32_t key_count = 0;  // valid keys, counted through `blocks` in order; a query sees those at
                          // positions <= its own
};

// What a step's attention is cut up by, the same for every layer.
struct AttentionPlanArgs {
  std::span<const AttentionSequence> sequences;  // query_count 0: padding, skipped
  int64_t tokens = 0;                            // T
  KvForm form = KvForm::kBf16;
  int32_t heads = 0, nope = 0, rope = 0, value = 0, latent = 0;
  // Blocks of the longest sequence that room is made for; plans of equal tokens, number of
  // sequences and blocks_max have their parts at the same places. 0: what the sequences need.
  int64_t blocks_max = 0;
  // Above 0: the keys of a query in absorbed form are summed in parts that end at multiples of so
  // many blocks, so that its result does not depend on the other sequences. 0: as suits the step.
  int32_t part_blocks = 0;
};

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

enum class RouterScore : uint8_t { kSigmoid, kSoftmax };

// model-family §2.7. Ties go to the lower expert index.
struct RouterParams {
  RouterScore score = RouterScore::kSigmoid;
  int32_t experts = 0, top_k = 0;
  int32_t groups = 1, groups_used = 1;
  bool group_by_top2 =
      true;  // group score: sum of the two best biased scores (noaux_tc); else the maximum
  bool normalise = true;  // divide by the sum of the chosen (+ 1e-20)
  float scaling = 1.0f;
};

// add_rms_norm of few rows, shared by the operations around it: one adds what it computes to the
// residual and writes rows and squares, the next takes rows for its x and divides what comes out:
//   rms_norm(residual)[t] = rows[t] / sqrt(sum of squares[t] / H + eps), rounded elsewhere.
struct JoinedNorm {
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
  TensorView x;                        // [T, H] act
  const JoinedNorm* before = nullptr;  // its rows instead of x, as JoinedOps::linear_from_norm
  PackedMatrix qkv_a;                  // [q_lora + R + P, H]
  AttentionInputArgs inputs;           // with q
  MlaAttentionArgs attention;
  PackedMatrix o;                      // [H, h * V]
  TensorView out;                      // [T, H] f32
  const JoinedNorm* behind = nullptr;  // instead of out, as JoinedOps::linear_to_norm
};

// What OpsTable::route chooses a step's experts by.
struct ExpertChoice {
  TensorView logits;  // [T, E] f32
  TensorView bias;    // optional [E] f32
  RouterParams params;
};

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
  // Where OpsTable::bank_adds_shared: the shared experts, if `shared` is given. Then `out` is not
  // added to but written: out[t] = shared_down * (swiglu of shared[t]) + the sum above; a part of
  // bf16 may hold the first term, rounded, before the sum is added.
  TensorView shared = {};         // [T, 2 I'] act: their first product, gate then up
  PackedMatrix shared_down = {};  // [H, I']
  // Where JoinedOps::bank_takes: what would be written to `out` is added to a residual instead.
  const JoinedNorm* norm = nullptr;
  // Where OpsTable::bank_chooses: ids and weights are not made yet but here, and written.
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
  // Where JoinedOps::linear_takes both matrices: x is written, and made of this before.
  const JoinedNorm* norm = nullptr;
  bool chooses = true;  // false: ids and weights need not be written
};

// What one row of logits needs to become a token, in this order:
//   1. log-probabilities are those of the raw logits;
//   2. ids outside `mask` and `banned` ids are excluded, logit_bias is added;
//   3. repetition_penalty divides a positive logit and multiplies a negative one of every id in
//      prompt or output; frequency_penalty times its count and presence_penalty are subtracted for
//      ids in the output;
//   4. temperature below 1e-5: the highest logit, of equal ones the lowest id;
//   5. else weights w = exp((logit - highest) / temperature); kept are those with w >= min_p, of
//      these the top_k heaviest, of these the fewest heaviest whose sum is at least top_p of theirs
//      (of equal logits the lower id is the heavier);
//   6. the first kept id, in rising order of ids, at which the running sum of kept weights exceeds
//      SamplingUniform(seed, index) times their total (sampling_rng.h).
// Rows that exclude every id, or with a non-finite logit, give token -1. Sums run in f64; weights
// may be rounded to f32.
struct SampleRow {
  int32_t logits_row = 0;
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;  // 0: all
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  uint64_t seed = 0;
  uint64_t index =
      0;  // of the token in the output: the draw depends on (seed, index) and the row alone
  std::span<const int32_t> prompt = {};  // for repetition_penalty
  std::span<const int32_t> output = {};  // for all three
  std::span<const std::pair<int32_t, float>> logit_bias = {};
  std::span<const int32_t> banned = {};  // ids that must not come (min_tokens)
  std::span<const uint32_t> mask = {};   // one bit a token, set: allowed; empty: all
  int32_t top_logprobs = -1;             // of the raw logits; -1: none
  int32_t given = -1;  // >= 0: nothing is drawn, the token is this one (log-probabilities of a
                       // prompt)
};

struct SampledLogprob {
  int32_t id = 0;
  float logprob = 0;
  int32_t rank = 0;
};

struct SampleResult {
  int32_t token = -1;
  std::vector<SampledLogprob> logprobs;  // the token, then the top ones; empty unless asked for
};

class ThreadPool;

// Rows of a norm as products with kFp8Block and quantise_input take them, so that they are rounded
// once for all that read them. Memory is the caller's; what lies in it is between a backend's
// operations: a norm writes codes with its rows, a product that is given these rows takes them. Who
// else writes the rows forgets `of`.
struct RoundedRows {
  void* codes = nullptr;     // [T, H] bytes; T, H of the largest norm
  float* scales = nullptr;   // [T, H / 128]
  int64_t width = 0;         // H, a multiple of 128
  const void* of = nullptr;  // the rows that the codes are of; null: none
  int64_t rows = 0, stride = 0;
};

// Rows of a norm once more, in the order of columns in which a backend's expert bank reads many of
// them. Memory is the caller's; add_rms_norm writes it with its rows and says whose copy it is, the
// bank that is given these rows takes it.
struct OrderedRows {
  void* data = nullptr;      // [T, H] act; null: not wanted
  const void* of = nullptr;  // the rows that it is a copy of; null: none
  int64_t rows = 0, stride = 0;
};

struct OpContext {
  ThreadPool* pool = nullptr;  // null: this thread only
  Arena* scratch = nullptr;    // of the backend's memory; reset by the caller between operations
  // Of pinned host memory, through which data travels; reset by the caller between steps, after a
  // wait. GPUs alone.
  Arena* staging = nullptr;
  void* stream = nullptr;          // of a GPU: cudaStream_t
  RoundedRows* rounded = nullptr;  // optional
  OrderedRows* ordered = nullptr;  // optional: of the norm ahead of an expert bank, and of the bank
};

// Operations recorded to be run again with one call.
class OpGraph {
 public:
  virtual ~OpGraph() = default;
  virtual void Launch(const OpContext&) const = 0;
};

// What can share a norm (JoinedNorm); all null where nothing can.
struct JoinedOps {
  // What makes the residual: linear from x by w, and the expert bank with `norm`.
  bool (*adder_takes)(const JoinedNorm&, TensorView x, const PackedMatrix& w) = nullptr;
  void (*linear_to_norm)(const OpContext&,
                         const JoinedNorm&,
                         TensorView x,
                         const PackedMatrix& w) = nullptr;
  bool (*bank_takes)(const ExpertBankArgs&) = nullptr;
  // What takes its rows: linear, and moe_inputs with `norm`.
  bool (*linear_takes)(TensorView out, const JoinedNorm&, const PackedMatrix& w) = nullptr;
  void (*linear_from_norm)(const OpContext&,
                           TensorView out,
                           const JoinedNorm&,
                           const PackedMatrix& w) = nullptr;
};

struct OpsTable {
  const char* name = "";
  DType act = DType::kBf16;
  const Memory* memory = &HostMemory();
  const Memory* staging = nullptr;  // of OpContext::staging; null: none is needed
  void* stream = nullptr;           // for OpContext::stream

  // Bytes of one packed matrix [n, k] kept in a form.
  int64_t (*packed_bytes)(WeightForm form, int64_t n, int64_t k) = nullptr;
  // Matrices of plain forms are kept row after row, with nothing between: rows can be brought to
  // the backend's memory without the others.
  bool plain_by_rows = false;
  // Packs rows [row_begin, row_begin + src.rows) of a matrix [n, k] kept as `form` into `dst`.
  // `dst` is host memory, copied to the backend's as it is. src.form is `form`; into a plain form
  // any plain form goes. Different row ranges may be packed
  // by different threads if they start at multiples of 32.
  void (*pack_rows)(WeightForm form,
                    void* dst,
                    int64_t n,
                    int64_t k,
                    int64_t row_begin,
                    const StoredRows& src) = nullptr;

  // Brings host memory to where operations read it: into `arena`, whose memory is the backend's. On
  // the CPU that is where it lies already, and `host` is given back.
  const void* (*upload)(const OpContext&, Arena& arena, const void* host, size_t bytes) = nullptr;
  // Waits for all that was queued. An error means that nothing can be computed any more.
  Status (*wait)(const OpContext&) = nullptr;
  // Records what `record` queues, without running it. Null where there are no graphs.
  std::unique_ptr<OpGraph> (*capture)(const OpContext&,
                                      const std::function<void()>& record) = nullptr;

  // Rows of a step from which a part may be bf16. 0: never.
  int64_t rounded_part_rows_min = 0;

  // out[t] = table[ids[t]], zeros where ids[t] is negative.  out [T, H] f32; table [vocab, H] bf16
  // or f32, row-major; ids [T] i32.
  void (*embed)(const OpContext&, TensorView out, TensorView table, TensorView ids) = nullptr;
  // out[i] = x[rows[i]].  x [T, D] part, out [N, D] f32; rows [N] i32.
  void (*gather_rows)(const OpContext&, TensorView out, TensorView x, TensorView rows) = nullptr;
  // out[rows[i]] = x[i].  x [N, D], out [T, D] f32; rows [N] i32, all different.
  void (*scatter_rows)(const OpContext&, TensorView out, TensorView x, TensorView rows) = nullptr;
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
  // What mla_attention of this step needs beside tensors, in `arena`; null if nothing.
  const void* (*plan_attention)(const OpContext&, Arena& arena, const AttentionPlanArgs&) = nullptr;
  void (*mla_attention)(const OpContext&, const MlaAttentionArgs&) = nullptr;
  // Joined operations, null where they are not: then the caller runs the parts.
  void (*attention_inputs)(const OpContext&, const AttentionInputArgs&) = nullptr;
  // logits = x * w^T, then route; logits [T, E] f32 hold the product afterwards.
  void (*router)(const OpContext&,
                 TensorView ids,
                 TensorView weights,
                 TensorView logits,
                 TensorView x,
                 const PackedMatrix& w,
                 TensorView bias,
                 const RouterParams&) = nullptr;
  void (*moe_inputs)(const OpContext&, const MoeInputArgs&) = nullptr;
  JoinedOps joined = {};
  bool bank_adds_shared = false;  // expert_bank takes ExpertBankArgs::shared
  // Whether expert_bank takes these with `choice`, which is given. Null: never.
  bool (*bank_chooses)(const ExpertBankArgs&) = nullptr;
  // False: not taken, nothing was queued, and the caller runs the parts. Null: never taken.
  bool (*attention_layer)(const OpContext&, const AttentionLayerArgs&) = nullptr;
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
  void (*expert_bank)(const OpContext&, const ExpertBankArgs&) = nullptr;
  // Whether expert_bank would take OpContext::ordered from the norm ahead. Null: never.
  bool (*bank_reads_ordered)(const ExpertBankArgs&) = nullptr;
  // logits [rows, vocab] f32 is scratch: its rows may be overwritten.
  void (*sample)(const OpContext&,
                 TensorView logits,
                 std::span<const SampleRow> rows,
                 std::span<SampleResult> results) = nullptr;
};

// The definition of right: f32 activations, weights as stored, one thread, no SIMD.
const OpsTable& ReferenceOps();
// The CPU product. `act` kBf16 or kF32; the instruction set is chosen once for the process
// (cpu/isa.h) and printed at start.
const OpsTable& CpuOps(DType act);

}  // namespace baltoro
