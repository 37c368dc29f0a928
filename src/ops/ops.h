#pragma once

// The contract of a backend. `reference/` defines right with plain loops; `cpu/` and `cuda/` are
// products and are held to it. A backend fills an OpsTable. What the model calls is coarse, half a
// layer at a time (hidden_state.h), so that each backend may fuse; a new backend starts from the
// plain composition of small operations (compose/).
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
// calls: only `upload`, `fetch`, `plan_attention`, `sample` and `wait` touch the host, the others
// can be recorded in a graph. There the way a sum is cut, and so its last bits, may depend on T.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/status.h"
#include "device/buffer.h"
#include "ops/attention.h"
#include "ops/context.h"
#include "ops/hidden_state.h"
#include "ops/matrix.h"
#include "ops/router.h"
#include "ops/sampling.h"
#include "tensor/tensor_view.h"

namespace baltoro {

struct SmallOps;
struct VisionOps;

struct OpsTable {
  const char* name = "";
  DType act = DType::kBf16;
  const Memory* memory = &HostMemory();
  const Memory* staging = nullptr;  // of OpContext::staging; null: none is needed
  void* rank = nullptr;             // for OpContext::rank

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
  // Waits likewise, then brings what operations wrote to host memory.
  Status (*fetch)(const OpContext&, void* host, const void* from, size_t bytes) = nullptr;
  // Records what `record` queues, without running it. Null where there are no graphs.
  std::unique_ptr<OpGraph> (*capture)(const OpContext&,
                                      const std::function<void()>& record) = nullptr;

  // What the attention of this step needs beside tensors, in `arena`; null if nothing.
  const void* (*plan_attention)(const OpContext&, Arena& arena, const AttentionPlanArgs&) = nullptr;
  // Whether a step of several rows a sequence, each of which sees `keys` keys at most, is faster
  // with its rows given as sequences of one row. Null: never.
  bool (*rows_alone)(const StepShape& shape, KvForm form, int64_t keys) = nullptr;
  // The hidden state of a step, in memory of `arena`: steps of equal shapes have theirs at the same
  // places. It resets the context's scratch as it goes.
  std::function<std::unique_ptr<HiddenState>(const OpContext&, Arena& arena, const StepShape&)>
      begin;
  // logits [rows, vocab] f32 is scratch: its rows may be overwritten.
  void (*sample)(const OpContext&,
                 TensorView logits,
                 std::span<const SampleRow> rows,
                 std::span<SampleResult> results) = nullptr;

  // tokens[i] becomes the id of the highest of logits[i], of equal ones the lowest, by the name
  // that names[id] gives it where there are names; -1 where a logit is not finite.  logits
  // [rows, n] f32; names [n] i32 or empty; tokens [rows] i32.
  void (*pick)(const OpContext&, TensorView tokens, TensorView logits, TensorView names) = nullptr;

  // Of a picture encoder (ops/vision.h). Null: the backend has none.
  const VisionOps* vision = nullptr;

  // What the backend is composed of, for tests and benchmarks of single operations.
  const SmallOps* small = nullptr;
  // For tests and benchmarks; given to every half that has experts.
  ExpertsTap* tap = nullptr;
};

// The definition of right: f32 activations, weights as stored, one thread, no SIMD.
const OpsTable& ReferenceOps();
// The CPU product. `act` kBf16 or kF32; the instruction set is chosen once for the process
// (cpu/isa.h) and printed at start.
const OpsTable& CpuOps(DType act);

}  // namespace baltoro
