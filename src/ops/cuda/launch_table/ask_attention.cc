// Attention of a step, what lies ahead of it, and the half of a layer in one operation.

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/launch_table/attention_step.h"
#include "ops/cuda/resident_attention.h"

namespace baltoro::cuda::launch_table {
namespace {

// Plans are made anew for each number of rows, so fewer are asked for.
constexpr int64_t kEachUpTo = 64;

// One for all questions, so that its memory is taken once. Not freed: the runtime may be gone
// before what is static.
Planned& ThePlan() {
  static Planned* const planned = new Planned;
  return *planned;
}

std::string HeadsAndCache(int64_t heads, const CacheForm& cache) {
  return std::to_string(heads) + " heads, cache " + cache.name;
}

}  // namespace

void AskAttention(Asker& asker) {
  // Launches of decode do not depend on the number of keys: few make plans cheap.
  constexpr Keys kKeys[] = {
      {.name = "1 query token each, recorded", .before = 1023, .recorded = true},
      {.name = "1 query token each", .before = 1023},
      {.name = "1 query token each, parts of 4 blocks", .before = 1023, .part_blocks = 4},
      {.name = "4 query tokens each", .queries = 4, .before = 1020},
      {.name = "8 query tokens each", .queries = 8, .before = 1016},
      {.name = "one prompt", .queries = 0},
      {.name = "one prompt behind 32768 keys", .queries = 0, .before = 32768},
      {.name = "prompts of 512", .queries = 512},
  };
  for (const Rank& r : Ranks()) {
    for (const CacheForm& cache : kCaches) {
      for (const Keys& keys : kKeys) {
        for (const bool lse : {false, true}) {
          // For the merge over ranks that hold different keys: one kind of step shows it.
          if (lse && !keys.recorded) continue;
          const RowRange range{.most = keys.queries == 1 ? 4096 : 8192, .every = kEachUpTo};
          asker.Ask(
              "attention, " + HeadsAndCache(r.heads, cache) + ", " + keys.name +
                  (lse ? ", with sums" : ""),
              range,
              [&](Step& s) {
                MlaAttentionArgs args = ThePlan().Args(s, cache.form, r.heads);
                if (lse) args.lse = s.Rows(DType::kF32, r.heads);
                MlaAttention(s.ctx, args);
                return true;
              },
              [&](Step& s) { ThePlan().Make(s, cache.form, r.heads, keys); });
        }
      }
    }
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
  constexpr Keys kDecode = {.name = "", .before = 1023, .recorded = true};
  for (const Rank& r : Ranks()) {
    if (r.q_lora == 0) continue;
    for (const FormCase& form : kForms) {
      for (const CacheForm& cache : kCaches) {
        for (const int norms : {0, 1, 2, 3}) {
          // No other form has them folded in; once without shows that it is not taken at all.
          if (norms > 0 && form.form != WeightForm::kBf16 && !form.quantise_input) continue;
          const bool ahead = (norms & 1) != 0, behind = (norms & 2) != 0;
          asker.Ask(
              std::string("attention half, ") + form.name + " of " + std::to_string(r.hidden) +
                  ", " + HeadsAndCache(r.heads, cache) + (ahead ? ", norm ahead" : "") +
                  (behind ? ", norm behind" : "") + (form.quantise_input ? ", x coded" : ""),
              {.most = 32},
              [&](Step& s) {
                const TensorView x = s.Rows(DType::kBf16, r.hidden);
                const JoinedNorm from = s.Norm(x), to = s.Norm(s.Rows(DType::kBf16, r.hidden));
                AttentionLayerArgs args{.x = x,
                                        .before = ahead ? &from : nullptr,
                                        .qkv_a = s.Matrix(form, r.qkv_a(), r.hidden),
                                        .inputs = InputsOf(s, r, form, cache.form),
                                        .attention = ThePlan().Args(s, cache.form, r.heads),
                                        .o = s.Matrix(form, r.hidden, r.heads * kValue),
                                        .out = s.Rows(DType::kF32, r.hidden),
                                        .behind = behind ? &to : nullptr};
                args.attention.cache = args.inputs.cache;
                args.attention.q = args.inputs.q;
                if (form.quantise_input) s.KnowCodes(x);
                return AttentionLayer(s.ctx, args);
              },
              [&](Step& s) { ThePlan().Make(s, cache.form, r.heads, kDecode); });
        }
      }
    }
  }
}

}  // namespace baltoro::cuda::launch_table
