// Operations on rows: norms, routing, rotation, copies; and sampling.

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/launch_table/attention_step.h"
#include "ops/cuda/launch_table/questions_rows.h"
#include "ops/cuda/rows/sample.h"

namespace baltoro::cuda::launch_table {
namespace {

void AskNorm(Asker& asker, const NormCase& c) {
  constexpr float kEps = 1e-5f;
  const int64_t width = c.width;
  if (!c.part) {
    return asker.Ask(c.name, c.range, [&](Step& s) {
      RmsNorm(s.ctx, s.Rows(DType::kBf16, width), s.Rows(DType::kF32, width),
              s.Vector(DType::kF32, width), kEps);
      return true;
    });
  }
  asker.Ask(c.name, c.range, [&](Step& s) {
    const TensorView out = s.Rows(DType::kBf16, width);
    // What the context has room for, the norm writes.
    if (c.wanted == NormCopy::kCodes) s.KnowCodes(out);
    if (c.wanted == NormCopy::kMatrixOrder) s.KnowOrder(out);
    AddRmsNorm(s.ctx, out, s.Rows(DType::kF32, width), s.Rows(*c.part, width),
               s.Vector(DType::kF32, width), kEps);
    return true;
  });
}

void AskRouting(Asker& asker, const RouteCase& c) {
  const RouterParams& params = c.params;
  asker.Ask("route" + c.name, {}, [&](Step& s) {
    Route(s.ctx, s.Rows(DType::kI32, params.top_k), s.Rows(DType::kF32, params.top_k),
          s.Rows(DType::kF32, params.experts), s.Vector(DType::kF32, params.experts), params);
    return true;
  });
  asker.Ask("router" + c.name + " by " + std::to_string(c.hidden), {}, [&](Step& s) {
    Router(s.ctx, s.Rows(DType::kI32, params.top_k), s.Rows(DType::kF32, params.top_k),
           s.Rows(DType::kF32, params.experts), s.Rows(DType::kBf16, c.hidden),
           s.Matrix(kPlain, params.experts, c.hidden), s.Vector(DType::kF32, params.experts),
           params);
    return true;
  });
}

void AskCopies(Asker& asker, int64_t width) {
  asker.Ask("embed" + Of(width), {}, [&](Step& s) {
    const TensorView table(s.Place(), DType::kBf16, {2048, width});
    Embed(s.ctx, s.Rows(DType::kF32, width), table, s.Vector(DType::kI32, s.rows), 0);
    return true;
  });
  asker.Ask("gather rows" + Of(width), {}, [&](Step& s) {
    GatherRows(s.ctx, s.Rows(DType::kF32, width), s.Rows(DType::kF32, width),
               s.Vector(DType::kI32, s.rows));
    return true;
  });
  asker.Ask("scatter rows" + Of(width), {}, [&](Step& s) {
    ScatterRows(s.ctx, s.Rows(DType::kF32, width), s.Rows(DType::kF32, width),
                s.Vector(DType::kI32, s.rows));
    return true;
  });
  asker.Ask("clear" + Of(width), {}, [&](Step& s) {
    Clear(s.ctx, s.Rows(DType::kF32, width));
    return true;
  });
}

void AskRotation(Asker& asker, int64_t heads) {
  asker.Ask("rope of " + std::to_string(heads) + " heads", {}, [&](Step& s) {
    const TensorView q(s.Place(), DType::kBf16, {s.rows, heads, kNope + kRope});
    Rope(s.ctx, q.columns(kNope, kRope), s.Vector(DType::kI32, s.rows),
         {.cos = static_cast<const float*>(s.Place()),
          .sin = static_cast<const float*>(s.Place()),
          .positions = 1 << 16,
          .dim = kRope});
    return true;
  });
}

}  // namespace

void AskRows(Asker& asker) {
  for (const NormCase& c : NormCases()) AskNorm(asker, c);
  for (const RouteCase& c : RouteCases()) AskRouting(asker, c);
  for (const int64_t width : SwigluWidths()) {
    asker.Ask("swiglu" + Of(width), {}, [&](Step& s) {
      Swiglu(s.ctx, s.Rows(DType::kBf16, width), s.Rows(DType::kBf16, 2 * width));
      return true;
    });
  }
  for (const Rank& r : Ranks()) {
    AskCopies(asker, r.hidden);
    AskRotation(asker, r.heads);
  }
  for (const CacheForm& cache : kCaches) {
    asker.Ask(std::string("cache write, ") + cache.name, {}, [&](Step& s) {
      KvWrite(s.ctx, CacheOf(s, cache.form), s.Rows(DType::kBf16, kLatent),
              s.Rows(DType::kBf16, kRope), s.Vector(DType::kI64, s.rows));
      return true;
    });
  }
}

// The launch alone: OpsTable::sample waits for its results, which a capture refuses.
void AskSampling(Asker& asker) {
  for (const int64_t vocab : {163840, 2304}) {
    for (const bool penalties : {false, true}) {
      for (const int32_t top : {0, 20}) {
        asker.Ask(
            "sample" + Of(vocab) + (penalties ? ", penalties" : "") +
                (top > 0 ? ", " + std::to_string(top) + " likely" : ""),
            {.most = 1024, .every = 128}, [&](Step& s) {
              LaunchSample(
                  s.ctx,
                  {.logits = s.Rows(DType::kF32, vocab),
                   .shape = {.rows = s.rows, .words = 0, .top_max = top, .penalties = penalties},
                   .wants = s.Place(),
                   .answers = s.Place()});
              return true;
            });
      }
    }
  }
}

}  // namespace baltoro::cuda::launch_table
