// Products: every matrix of a layer, in every form, as the layer reads and writes it.

#include "ops/cuda/launch_table/ask.h"
#include "ops/cuda/launch_table/family.h"
#include "ops/cuda/norm_join.h"

namespace baltoro::cuda::launch_table {
namespace {

// The rows that a product adds to a sum over ranks may be rounded from here on.
constexpr RowRange kPartRows{.least = kRoundedPartRowsMin};
constexpr RowRange kNormRows{.most = JoinedNorm::kRowsMax};

struct Product {
  int64_t n, k;
  int64_t x_width = 0;  // of the rows that x is the first columns of; 0: k
  DType out = DType::kBf16;
  bool adds = false;         // to the residual: of f32, and bf16 in steps of many rows
  bool behind_norm = false;  // x is a norm's result
  bool joins_norm = false;   // where a norm may be folded into it
};

std::vector<Product> ProductsOf(const Rank& r) {
  const int64_t q_in = r.q_lora > 0 ? r.q_lora : r.hidden;
  return {
      {.n = r.qkv_a(), .k = r.hidden, .behind_norm = true, .joins_norm = true},
      {.n = r.head_width(),
       .k = q_in,
       .x_width = r.q_lora > 0 ? r.qkv_a() : 0,
       .behind_norm = r.q_lora == 0},
      {.n = r.hidden, .k = r.heads * kValue, .adds = true, .joins_norm = true},
      {.n = 2 * r.dense, .k = r.hidden, .behind_norm = true},
      {.n = r.hidden, .k = r.dense, .adds = true},
      {.n = 2 * r.shared, .k = r.hidden, .behind_norm = true, .joins_norm = true},
      {.n = r.hidden, .k = r.shared, .adds = true},
      {.n = r.experts, .k = r.hidden, .out = DType::kF32, .behind_norm = true, .joins_norm = true},
      {.n = r.vocab, .k = r.hidden, .out = DType::kF32, .behind_norm = true},
  };
}

void AskProduct(Asker& asker, const FormCase& form, const Product& p) {
  const std::string name = std::string("linear, ") + form.name + " [" + std::to_string(p.n) + ", " +
                           std::to_string(p.k) + "]";
  const auto rows_of = [p](Step& s) {
    return s.Rows(DType::kBf16, p.x_width > 0 ? p.x_width : p.k).columns(0, p.k);
  };
  const auto plain = [form, p, rows_of](Step& s, DType type, bool codes) {
    const TensorView x = rows_of(s), out = s.Rows(type, p.n);
    const PackedMatrix w = s.Matrix(form, p.n, p.k);
    if (codes) s.KnowCodes(x);
    Linear(s.ctx, out, x, w);
    return true;
  };
  const DType out = p.adds ? DType::kF32 : p.out;
  const std::string strided = p.x_width > 0 ? ", x in rows of " + std::to_string(p.x_width) : "";
  asker.Ask(name + strided + " to " + (out == DType::kF32 ? "f32" : "bf16"), {},
            [&](Step& s) { return plain(s, out, false); });
  if (p.adds) {
    asker.Ask(name + " to bf16 parts", kPartRows,
              [&](Step& s) { return plain(s, DType::kBf16, false); });
  }
  if (p.behind_norm && form.quantise_input && NormWritesCodes(p.k)) {
    asker.Ask(name + strided + " to " + (out == DType::kF32 ? "f32" : "bf16") + ", x coded", {},
              [&](Step& s) { return plain(s, out, true); });
  }
  if (!p.joins_norm) return;
  if (p.adds) {
    asker.Ask(name + ", norm behind", kNormRows, [&](Step& s) {
      const TensorView x = rows_of(s);
      const JoinedNorm norm = s.Norm(s.Rows(DType::kBf16, p.n));
      const PackedMatrix w = s.Matrix(form, p.n, p.k);
      if (!NormAdderTakes(norm, x, w)) return false;
      LinearToNorm(s.ctx, norm, x, w);
      return true;
    });
    return;
  }
  asker.Ask(name + ", norm ahead", kNormRows, [&](Step& s) {
    const JoinedNorm norm = s.Norm(rows_of(s));
    const TensorView to = s.Rows(p.out, p.n);
    const PackedMatrix w = s.Matrix(form, p.n, p.k);
    if (!NormLinearTakes(to, norm, w)) return false;
    LinearFromNorm(s.ctx, to, norm, w);
    return true;
  });
}

}  // namespace

void AskLinear(Asker& asker) {
  for (const FormCase& form : kForms) {
    for (const Rank& rank : Ranks()) {
      for (const Product& product : ProductsOf(rank)) {
        if (CanBeCut(form, product.k)) AskProduct(asker, form, product);
      }
    }
  }
}

}  // namespace baltoro::cuda::launch_table
