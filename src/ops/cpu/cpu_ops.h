#pragma once

// The operations of the CPU product, one function per entry of SmallOps and OpsTable (whose
// headers state each contract). One function serves both activation types and reads them from its
// views.

#include <cstdint>
#include <functional>
#include <span>

#include "ops/compose/small_ops.h"
#include "ops/ops.h"

namespace baltoro::cpu {

int64_t PackedBytes(WeightForm form, int64_t n, int64_t k);
void PackRows(
    WeightForm form, void* dst, int64_t n, int64_t k, int64_t row_begin, const StoredRows& src);

void Embed(const OpContext& ctx, TensorView out, TensorView table, TensorView ids, int64_t first);
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
void MlaAttention(const OpContext& ctx, const MlaAttentionArgs& args);
void HeadAttention(const OpContext& ctx, const HeadAttentionArgs& args);
void Swiglu(const OpContext& ctx, TensorView out, TensorView x);
void Route(const OpContext& ctx,
           TensorView ids,
           TensorView weights,
           TensorView logits,
           TensorView bias,
           const RouterParams& params);
void ExpertBank(const OpContext& ctx, const ExpertBankArgs& args);
void Sample(const OpContext& ctx,
            TensorView logits,
            std::span<const SampleRow> rows,
            std::span<SampleResult> results);

// The loop that all of them use: on the context's pool, or here when there is none. `thread` is in
// [0, ThreadCount(ctx)).
void ParallelFor(const OpContext& ctx,
                 int64_t items,
                 const std::function<void(int64_t item, int thread)>& body);
int ThreadCount(const OpContext& ctx);

}  // namespace baltoro::cpu
