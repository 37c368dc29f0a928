#pragma once

// The functions behind ReferenceOps() and ReferenceSmallOps(), one for each entry: plain loops, one
// thread, sums in f64. They read and write bf16 and f32 views alike. A packed matrix of the
// reference is the matrix itself, row-major.

#include "ops/compose/small_ops.h"
#include "ops/ops.h"

namespace baltoro::reference {

int64_t PackedBytes(WeightForm form, int64_t n, int64_t k);
void PackRows(
    WeightForm form, void* dst, int64_t n, int64_t k, int64_t row_begin, const StoredRows& src);
void Embed(const OpContext&, TensorView out, TensorView table, TensorView ids, int64_t first);
void RmsNorm(const OpContext&, TensorView out, TensorView x, TensorView weight, float eps);
void AddRmsNorm(const OpContext&,
                TensorView out,
                TensorView residual,
                TensorView delta,
                TensorView weight,
                float eps);
void Linear(const OpContext&, TensorView out, TensorView x, const PackedMatrix& w);
void Rope(const OpContext&, TensorView x, TensorView positions, const RopeTable& table);
void KvWrite(const OpContext&,
             const KvLayerView& cache,
             TensorView latent,
             TensorView rope,
             TensorView slots);
void MlaAttention(const OpContext&, const MlaAttentionArgs&);
void HeadAttention(const OpContext&, const HeadAttentionArgs&);
void Swiglu(const OpContext&, TensorView out, TensorView x);
void Route(const OpContext&,
           TensorView ids,
           TensorView weights,
           TensorView logits,
           TensorView bias,
           const RouterParams&);
void ExpertBank(const OpContext&, const ExpertBankArgs&);
void Sample(const OpContext&,
            TensorView logits,
            std::span<const SampleRow> rows,
            std::span<SampleResult> results);

}  // namespace baltoro::reference
