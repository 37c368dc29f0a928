// Attention of a step, what lies ahead of it, and the half of a layer in one operation.

#include "ops/cuda/attention/layer/resident_attention.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/launch_table/attention_step.h"

namespace baltoro::cuda::launch_table {
namespace {

// One for all questions, so that its memory is taken once. Not freed: the runtime may be gone
// before what is static.
Planned& ThePlan() {
  static Planned* const planned = new Planned;
  return *planned;
}

}  // namespace

void AskAttention(Asker& asker) {
  for (const AttentionCase& c : AttentionCases()) {
    asker.Ask(
        c.name, c.range,
        [&](Step& s) {
          MlaAttentionArgs args = ThePlan().Args(s, c.cache.form, c.heads);
          if (c.sums) args.lse = s.Rows(DType::kF32, c.heads);
          MlaAttention(s.ctx, args);
          return true;
        },
        [&](Step& s) { ThePlan().Make(s, c.cache.form, c.heads, c.keys); });
  }
}

void AskAttentionInputs(Asker& asker) {
  for (const AttentionInputsCase& c : AttentionInputsCases()) {
    asker.Ask(c.question, {}, [&](Step& s) {
      AttentionInputs(s.ctx, InputsOf(s, c.rank, c.form, c.cache.form));
      return true;
    });
  }
}

void AskAttentionLayer(Asker& asker) {
  for (const AttentionHalfCase& c : AttentionHalfCases()) {
    const Rank& r = c.rank;
    asker.Ask(
        c.name, c.range,
        [&](Step& s) {
          const TensorView x = s.Rows(DType::kBf16, r.hidden);
          const BegunNorm from = s.Norm(x), to = s.Norm(s.Rows(DType::kBf16, r.hidden));
          AttentionLayerArgs args{.x = x,
                                  .before = c.norm_ahead ? &from : nullptr,
                                  .qkv_a = s.Matrix(c.form, r.qkv_a(), r.hidden),
                                  .inputs = InputsOf(s, r, c.form, c.cache.form),
                                  .attention = ThePlan().Args(s, c.cache.form, r.heads),
                                  .o = s.Matrix(c.form, r.hidden, r.heads * kValue),
                                  .out = s.Rows(DType::kF32, r.hidden),
                                  .behind = c.norm_behind ? &to : nullptr};
          args.attention.cache = args.inputs.cache;
          args.attention.q = args.inputs.q;
          if (c.form.quantise_input) s.KnowCodes(x);
          return AttentionLayer(s.ctx, args);
        },
        [&](Step& s) { ThePlan().Make(s, c.cache.form, r.heads, kKeys[0]); });
  }
}

}  // namespace baltoro::cuda::launch_table
