#pragma once

// The operations of the CUDA product, one function per entry of SmallOps and OpsTable (whose
// headers state each contract). Tensors, matrices and the cache are device memory, `act` is bf16.
// Each only queues launches on the context's stream and can be captured in a graph, except Upload,
// Fetch, PlanAttention, Sample and Wait. Scratch is device memory, staging pinned host memory.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "ops/cuda/fused_args.h"
#include "ops/cuda/launch/rank_state.h"
#include "ops/cuda/rows/row_sizes.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// Writes the line, and ends the process.
[[noreturn]] void EndProcess(const std::string& why);
// Ends the process if the launch just made failed, with the kernel's name: what follows would
// compute with what was never written.
void CheckLaunch(const char* kernel);
// Likewise for calls of the runtime and of libraries.
void CheckCuda(cudaError_t error, const char* what);
// Likewise for what has checked its arguments before.
void CheckOk(const Status& status);

int64_t PackedBytes(WeightForm form, int64_t n, int64_t k);
void PackRows(
    WeightForm form, void* dst, int64_t n, int64_t k, int64_t row_begin, const StoredRows& src);

const void* Upload(const OpContext& ctx, Arena& arena, const void* host, size_t bytes);
// Queues a copy to pinned memory of `staging`, which holds the bytes after a wait.
const void* Download(const OpContext& ctx, const void* device, size_t bytes);
Status Wait(const OpContext& ctx);
Status Fetch(const OpContext& ctx, void* host, const void* from, size_t bytes);
std::unique_ptr<OpGraph> Capture(const OpContext& ctx, const std::function<void()>& record);

void Embed(const OpContext& ctx, TensorView out, TensorView table, TensorView ids, int64_t first);
void GatherRows(const OpContext& ctx, TensorView out, TensorView x, TensorView rows);
void ScatterRows(const OpContext& ctx, TensorView out, TensorView x, TensorView rows);
void Copy(const OpContext& ctx, TensorView out, TensorView x);
void Clear(const OpContext& ctx, TensorView x);
void RmsNorm(const OpContext& ctx, TensorView out, TensorView x, TensorView weight, float eps);
void AddRmsNorm(const OpContext& ctx,
                TensorView out,
                TensorView residual,
                TensorView delta,
                TensorView weight,
                float eps);
void Linear(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w);
void Rope(const OpContext& ctx, TensorView x, TensorView positions, const RopeTable& table);
void KvWrite(const OpContext& ctx,
             const KvLayerView& cache,
             TensorView latent,
             TensorView rope,
             TensorView slots);
bool RowsAlone(const StepShape& shape, KvForm form, int64_t keys);
const void* PlanAttention(const OpContext& ctx, Arena& arena, const AttentionPlanArgs& args);
void MlaAttention(const OpContext& ctx, const MlaAttentionArgs& args);
void HeadAttention(const OpContext& ctx, const HeadAttentionArgs& args);
void Swiglu(const OpContext& ctx, TensorView out, TensorView x);
void Route(const OpContext& ctx,
           TensorView ids,
           TensorView weights,
           TensorView logits,
           TensorView bias,
           const RouterParams& params);
void ChooseCopies(const OpContext& ctx, TensorView ids, const ExpertCopies& copies);
void ExpertBank(const OpContext& ctx, const ExpertBankArgs& args);
void Pick(const OpContext& ctx, TensorView tokens, TensorView logits, TensorView names);
void Sample(const OpContext& ctx,
            TensorView logits,
            std::span<const SampleRow> rows,
            std::span<SampleResult> results);

}  // namespace baltoro::cuda
