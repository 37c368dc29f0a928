// ExpertBank in every weight form against the reference (f64, nothing rounded between). The middle
// activation and each expert's share are rounded to bf16 (2^-9 each), the weights of kInt4Group
// too. Together 3e-2 of a row's root mean square, 6e-3 on average.
//
// The wide kernels add products of e4m3 codes with about 13 bits: gate and up are off by 1e-3 of
// their root mean square. So 7 % of the middle's codes are neighbours of the reference's, a 16th of
// the number off, and where a row's middle is one large number, so is its whole result. A model of
// this on the host (noise of 1e-3 before the rounding, the shapes and rows of these tests) is off
// by 1.06e-2 on average and by 0.21 where I is 128 and a token has one expert: 0.3 and 1.5e-2.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "device/cuda/device_info.h"
#include "ops/cuda/fp8_bank.h"
#include "ops/cuda/product.h"
#include "ops/cuda/product_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace product_test;

struct Tolerance {
  float largest, typical;
};
// `rows` of an expert, on average: from three on by the wide kernels.
Tolerance ToleranceOf(const FormCase& form, double rows) {
  if (form.quantise_input && rows > 3) return {0.3f, 1.5e-2f};
  return {3e-2f, 6e-3f};
}

struct Shape {
  int64_t hidden, intermediate, slots;
  int32_t top_k;
  bool holes = false;  // half of the experts are held elsewhere
};

struct Bank {
  Shape shape;
  Weights gate_up, down;
  std::vector<int32_t> slot_of;

  Bank(const FormCase& form, const Shape& s)
      : shape(s),
        gate_up(1, form, s.slots, 2 * s.intermediate, s.hidden, {0, s.intermediate}),
        down(2, form, s.slots, s.hidden, s.intermediate) {
    const auto experts = static_cast<int32_t>(s.slots * (s.holes ? 2 : 1));
    for (int32_t e = 0; e < experts; ++e) {
      slot_of.push_back(!s.holes ? e : e % 3 == 1 ? -1 : static_cast<int32_t>(e * 5 % s.slots));
    }
  }
};

struct Step {
  Rows x;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  // `hot`: every row takes the first experts.
  Step(const Bank& bank, int64_t rows, bool hot, int64_t nan_row = -1)
      : x(9, rows, bank.shape.hidden, 8, nan_row) {
    std::mt19937 random(static_cast<uint32_t>(rows));
    const int32_t k = bank.shape.top_k;
    std::vector<int32_t> order(bank.slot_of.size());
    for (int64_t t = 0; t < rows; ++t) {
      std::iota(order.begin(), order.end(), 0);
      if (!hot) std::shuffle(order.begin(), order.end(), random);
      ids.insert(ids.end(), order.begin(), order.begin() + k);
      for (int32_t j = 0; j < k; ++j) {
        weights.push_back(static_cast<float>(random() % 1024) / 1024);
      }
    }
  }
};

constexpr float kBefore = 0.25f;  // what out holds before it is added to

std::vector<float> Expected(const Bank& bank, const Step& step) {
  const int64_t rows = step.x.rows;
  std::vector<float> out(static_cast<size_t>(rows * bank.shape.hidden), kBefore);
  ReferenceOps().expert_bank(
      {}, {.out = TensorView(out.data(), DType::kF32, {rows, bank.shape.hidden}),
           .x = step.x.reference(),
           .ids = TensorView(const_cast<int32_t*>(step.ids.data()), DType::kI32,
                             {rows, bank.shape.top_k}),
           .weights = TensorView(const_cast<float*>(step.weights.data()), DType::kF32,
                                 {rows, bank.shape.top_k}),
           .gate_up = bank.gate_up.reference,
           .down = bank.down.reference,
           .slot_of = bank.slot_of});
  return out;
}

std::vector<float> Product(Context& context,
                           const Bank& bank,
                           const Step& step,
                           bool graph = false,
                           Fp8Form fp8 = Fp8Form::kAuto,
                           const Rows* shared = nullptr,
                           const Weights* shared_down = nullptr) {
  const int64_t rows = step.x.rows;
  const auto count = static_cast<size_t>(rows * bank.shape.hidden);
  const Buffer out = OnDevice(std::vector<float>(count, kBefore));
  const Buffer ids = OnDevice(step.ids), weights = OnDevice(step.weights);
  ExpertBankArgs args{.out = TensorView(out.data(), DType::kF32, {rows, bank.shape.hidden}),
                      .x = step.x.device(),
                      .ids = TensorView(ids.data(), DType::kI32, {rows, bank.shape.top_k}),
                      .weights = TensorView(weights.data(), DType::kF32, {rows, bank.shape.top_k}),
                      .gate_up = bank.gate_up.device,
                      .down = bank.down.device,
                      .slot_of = bank.slot_of};
  if (shared != nullptr) {
    args.shared = shared->device();
    args.shared_down = shared_down->device;
  }
  const OpContext ctx = context.get();
  if (graph) {
    Capture(ctx, [&] { ExpertBank(ctx, args); })->Launch(ctx);
    context.Wait();
  } else if (fp8 != Fp8Form::kAuto) {
    BT_CHECK(!bank.shape.holes);
    Fp8Bank(ctx, args, nullptr, fp8);
    context.Wait();
  } else {
    ExpertBank(ctx, args);
    context.Wait();
  }
  return FromDevice<float>(out.data(), count);
}

std::string Name(const FormCase& form, const Shape& s, int64_t rows) {
  return std::string(form.name) + " H " + std::to_string(s.hidden) + " I " +
         std::to_string(s.intermediate) + " slots " + std::to_string(s.slots) + " k " +
         std::to_string(s.top_k) + " T " + std::to_string(rows);
}

void Compare(Context& context,
             const FormCase& form,
             const Bank& bank,
             std::initializer_list<int64_t> rows,
             bool hot,
             std::initializer_list<Fp8Form> forms = {Fp8Form::kAuto}) {
  for (const int64_t t : rows) {
    const Step step(bank, t, hot);
    const double mean =
        static_cast<double>(t * bank.shape.top_k) / static_cast<double>(bank.shape.slots);
    const std::vector<float> want = Expected(bank, step);
    for (const Fp8Form fp8 : forms) {
      const bool wide = fp8 == Fp8Form::kWide || fp8 == Fp8Form::kJoined;
      const Tolerance tolerance = ToleranceOf(form, wide                         ? 1000
                                                    : fp8 == Fp8Form::kStreaming ? 1
                                                                                 : mean);
      const char* const how = fp8 == Fp8Form::kWide        ? " wide"
                              : fp8 == Fp8Form::kJoined    ? " joined"
                              : fp8 == Fp8Form::kStreaming ? " streaming"
                                                           : "";
      const std::vector<float> got = Product(context, bank, step, false, fp8);
      for (int again = 0; fp8 != Fp8Form::kAuto && again < 2; ++again) {
        if (Product(context, bank, step, false, fp8) == got) continue;
        Fail(Name(form, bank.shape, t) + how + ": other bits in run " + std::to_string(again + 2));
        break;
      }
      ExpectNear(Name(form, bank.shape, t) + (hot ? " hot" : "") + how, got, want,
                 bank.shape.hidden, tolerance.largest, 0, tolerance.typical);
    }
  }
}

GPU_TEST(ExpertBankTest, SmallBanksInEveryForm) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;  // no bank is kept so
    for (const Shape& shape : {Shape{256, 128, 16, 4}, Shape{256, 128, 12, 4, true},
                               Shape{160, 96, 9, 3}, Shape{72, 32, 5, 2, true}}) {
      const bool whole_groups = shape.hidden % 32 == 0 && shape.intermediate % 32 == 0;
      if (form.form == WeightForm::kInt4Group && !whole_groups) continue;
      const Bank bank(form, shape);
      Compare(context, form, bank, {1, 3, 17, 129}, false);
      Compare(context, form, bank, {5, 70}, true);
    }
  }
}

GPU_TEST(ExpertBankTest, RankShapeInEveryForm) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {7168, 256, 12, 8, true});
    Compare(context, form, bank, {1, 4}, false);
  }
}

GPU_TEST(ExpertBankTest, ManyRowsInEveryForm) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {768, 192, 6, 3, true});
    Compare(context, form, bank, {60, 500}, false);
    Compare(context, form, bank, {150}, true);
  }
}

// Whole groups of 128 in both products, as the kernels of fp8_bank.h take them: tiles of every
// number of columns, parts of a piece beyond the last row of a matrix, experts without rows, one
// with all.
GPU_TEST(ExpertBankTest, Fp8InWholeGroups) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const Shape& shape : {Shape{512, 256, 4, 2}, Shape{640, 384, 3, 2}, Shape{384, 128, 9, 1},
                               Shape{1152, 512, 6, 3}}) {
      const Bank bank(form, shape);
      Compare(context, form, bank, {2, 33, 65, 150}, false, {Fp8Form::kStreaming, Fp8Form::kWide});
      Compare(context, form, bank, {1, 9, 30, 96, 129}, true,
              {Fp8Form::kStreaming, Fp8Form::kWide});
    }
    const Bank bank(form, {7168, 256, 3, 2, true});
    Compare(context, form, bank, {1, 7, 40, 60}, false);
    // More rows than are held here: what is behind the last of them is nothing.
    const Bank held(form, {512, 256, 2, 2, true});
    Compare(context, form, held, {300}, false);
    // Several tiles an expert: blocks in pairs, with odd numbers of tiles and pairs of two experts.
    const Bank one(form, {512, 256, 1, 1}), few(form, {640, 128, 3, 1});
    Compare(context, form, one, {200, 260, 600}, false, {Fp8Form::kWide});
    Compare(context, form, few, {580, 900}, false, {Fp8Form::kWide});
    Compare(context, form, few, {700}, true, {Fp8Form::kWide});
  }
}

// The down product and the sum in one kernel: pieces of every number of columns, experts without
// rows, one with all, experts held elsewhere.
GPU_TEST(ExpertBankTest, Fp8Joined) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    const std::initializer_list<Fp8Form> joined = {Fp8Form::kJoined};
    for (const Shape& shape : {Shape{512, 256, 4, 2}, Shape{1152, 256, 6, 3}, Shape{384, 256, 9, 1},
                               Shape{2048, 256, 20, 8}}) {
      const Bank bank(form, shape);
      Compare(context, form, bank, {2, 33, 65, 150}, false, joined);
      Compare(context, form, bank, {1, 9, 30, 96, 129}, true, joined);
    }
    const Bank bank(form, {7168, 256, 3, 2});
    Compare(context, form, bank, {1, 40, 60}, false, joined);
    // As whole banks choose it, with more rows than are held here; 300 tokens are too many for it.
    const Bank held(form, {512, 256, 4, 4, true});
    Compare(context, form, held, {30, 300}, false);
    // A row that is no number, and what is beside it.
    const Bank few(form, {256, 256, 12, 4});
    const std::vector<float> want =
        Product(context, few, Step(few, 40, true), false, Fp8Form::kJoined);
    const std::vector<float> got =
        Product(context, few, Step(few, 40, true, 2), false, Fp8Form::kJoined);
    int64_t wrong = 0;
    for (int64_t at = 0; at < std::ssize(got); ++at) {
      wrong += at / 256 == 2 ? !std::isnan(got[at]) : got[at] != want[at];
    }
    if (wrong != 0) Fail(std::to_string(wrong) + " numbers are wrong beside a NaN");
  }
}

float FromE4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

// Grouped products whose rows lie in order, by the large form (gated; plain of few steps, and of
// eight and more), against the wide form, which whole banks above hold to the reference. Both
// multiply the same codes. Sums may differ in the bits that the matrix units drop (1e-3 of a row),
// codes of the middle by a unit, results in bf16 likewise.
GPU_TEST(ExpertBankTest, Fp8RowsInOrder) {
  Context context;
  constexpr int64_t kRows = 700, kFirst = 450, kSlots = 2;
  std::vector<MoeTile> tiles;
  for (int32_t begin = 0; begin < kRows;) {
    const auto end = static_cast<int32_t>(begin < kFirst ? kFirst : kRows);
    const int32_t count = std::min(kFp8WideRows, end - begin);
    tiles.push_back({begin < kFirst ? 0 : 1, begin, count, 0});
    begin += count;
  }
  std::vector<int32_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  const Buffer device_tiles = OnDevice(tiles), device_order = OnDevice(order);
  const Buffer num_tiles = OnDevice(std::vector<int32_t>{static_cast<int32_t>(tiles.size())});
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const auto& [n, k, gated] : {std::tuple<int64_t, int64_t, bool>{512, 512, true},
                                      {256, 1536, true},
                                      {520, 512, false},
                                      {520, 1024, false}}) {
      const Weights w(3, form, kSlots, n, k,
                      gated ? std::vector<int64_t>{0, n / 2} : std::vector<int64_t>{0});
      const Rows x(4, kRows, k, 0);
      const int64_t columns = gated ? n / 2 : n, groups = columns / 128;
      const auto product = [&](bool wide) {
        const OpContext ctx = context.get();
        const QuantisedRows in =
            QuantiseRows(ctx, {.x = x.device().data, .stride = k, .rows = kRows, .k = k}, w.device);
        const Buffer out = OnDevice(std::vector<uint16_t>(kRows * columns, 0x7f7f));
        const Buffer scales = OnDevice(std::vector<float>(kRows * (groups + 1)));
        LaunchFp8Wide({.w = w.device,
                       .gated = gated,
                       .x = in.x,
                       .x_row_bytes = in.x_stride,
                       .x_scales = in.x_scales,
                       .out = out.data(),
                       .out_scales = static_cast<float*>(scales.data()),
                       .out_stride = columns,
                       .rows = kRows,
                       .tiles = static_cast<const MoeTile*>(device_tiles.data()),
                       .num_tiles = static_cast<const int32_t*>(num_tiles.data()),
                       .tiles_max = static_cast<int32_t>(tiles.size()),
                       .order = static_cast<const int32_t*>(device_order.data()),
                       .top_k = 1,
                       .gather = wide},
                      context.stream.get());
        context.Wait();
        std::vector<float> values;
        if (!gated) {
          for (const Bf16 v : FromDevice<Bf16>(out.data(), kRows * columns)) {
            values.push_back(ToFloat(v));
          }
          return values;
        }
        const auto codes = FromDevice<uint8_t>(out.data(), kRows * columns);
        const auto of_groups = FromDevice<float>(scales.data(), kRows * groups);
        for (int64_t at = 0; at < kRows * columns; ++at) {
          values.push_back(FromE4m3(codes[static_cast<size_t>(at)]) *
                           of_groups[static_cast<size_t>(at / 128)]);
        }
        return values;
      };
      const std::vector<float> want = product(true), got = product(false);
      const std::string name = std::string(gated ? "gated" : "plain") + " n " + std::to_string(n) +
                               " k " + std::to_string(k);
      ExpectNear(name, got, want, columns, 5e-3f, gated ? 0.13f : 0x1p-7f, 1e-3f);
      for (int again = 0; again < 2; ++again) {
        if (product(false) != got) Fail(name + ": other bits in run " + std::to_string(again + 2));
      }
    }
  }
}

// With the shared experts' second product: of few tokens in the same kernels, of more before them.
GPU_TEST(ExpertBankTest, Fp8WithSharedExperts) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const Shape& shape : {Shape{7168, 256, 12, 8, true}, Shape{512, 384, 4, 3}}) {
      const Bank bank(form, shape);
      const int64_t width = shape.intermediate;
      const Weights shared_down(5, form, 1, shape.hidden, width);
      for (const int64_t rows : {1, 4, 7, 16}) {
        const Step step(bank, rows, false);
        const Rows shared(6, rows, 2 * width, 8);
        std::vector<float> gated(static_cast<size_t>(rows * width));
        const TensorView gated_view(gated.data(), DType::kF32, {rows, width});
        ReferenceOps().swiglu({}, gated_view, shared.reference());
        // As an activation is kept.
        for (float& v : gated) v = ToFloat(ToBf16(v));
        std::vector<float> want(static_cast<size_t>(rows * shape.hidden));
        ReferenceOps().linear({}, TensorView(want.data(), DType::kF32, {rows, shape.hidden}),
                              gated_view, shared_down.reference);
        const std::vector<float> routed = Expected(bank, step);
        for (size_t i = 0; i < want.size(); ++i) want[i] += routed[i] - kBefore;
        const std::vector<float> got =
            Product(context, bank, step, false, Fp8Form::kAuto, &shared, &shared_down);
        ExpectNear(Name(form, shape, rows) + " shared", got, want, shape.hidden, 0.3f, 0, 1.5e-2f);
      }
    }
  }
}

GPU_TEST(ExpertBankTest, Fp8NaNStaysInItsRow) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    const Bank bank(form, {512, 256, 4, 2});
    const std::vector<float> want =
        Product(context, bank, Step(bank, 40, true), false, Fp8Form::kWide);
    const std::vector<float> got =
        Product(context, bank, Step(bank, 40, true, 5), false, Fp8Form::kWide);
    int64_t others = 0, numbers = 0;
    for (int64_t at = 0; at < std::ssize(got); ++at) {
      if (at / 512 == 5) {
        numbers += !std::isnan(got[at]);
      } else {
        others += got[at] != want[at];
      }
    }
    if (others != 0) Fail(std::to_string(others) + " numbers of other rows changed");
    if (numbers != 0) Fail(std::to_string(numbers) + " numbers of its row are none");
  }
}

GPU_TEST(ExpertBankTest, NaNStaysInItsRow) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {256, 128, 12, 4});
    for (const int64_t rows : {3, 40}) {
      const std::vector<float> want = Product(context, bank, Step(bank, rows, true));
      const std::vector<float> got = Product(context, bank, Step(bank, rows, true, 2));
      int64_t others = 0, numbers = 0;
      for (int64_t at = 0; at < std::ssize(got); ++at) {
        if (at / 256 == 2) {
          numbers += !std::isnan(got[at]);
        } else {
          others += got[at] != want[at];
        }
      }
      const std::string what = Name(form, bank.shape, rows) + ": ";
      if (others != 0) Fail(what + std::to_string(others) + " numbers of other rows changed");
      if (numbers != 0) Fail(what + std::to_string(numbers) + " numbers of its row are none");
    }
  }
}

GPU_TEST(ExpertBankTest, RunsInAGraph) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {256, 128, 12, 4, true});
    for (const int64_t rows : {2, 50}) {
      const Step step(bank, rows, false);
      const std::vector<float> want = Product(context, bank, step);
      GPU_EXPECT(Product(context, bank, step, true) == want);
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
