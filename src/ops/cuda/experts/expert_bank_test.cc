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
#include "ops/cuda/experts/expert_bank.h"
#include "ops/cuda/experts/expert_bank_test_support.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/layer/norm_begun.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::cuda {
namespace {

using namespace bank_test;

struct Tolerance {
  float largest, typical;
};
// `rows` of an expert, on average: from three on by the wide kernels.
Tolerance ToleranceOf(const FormCase& form, double rows) {
  if (form.quantise_input && rows > 3) return {0.3f, 1.5e-2f};
  return {3e-2f, 6e-3f};
}

constexpr float kBefore = 0.25f;  // what out holds before it is added to

std::vector<float> Expected(const Bank& bank, const Step& step) {
  const int64_t rows = step.x.rows;
  std::vector<float> out(static_cast<size_t>(rows * bank.shape.hidden), kBefore);
  ReferenceSmallOps().expert_bank(
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

// Instead of a way that is asked for.
constexpr ExpertsKernel kChosen = ExpertsKernel::kNone;

// What becomes of `before`, in its own type.
template <typename Element>
std::vector<Element> AddTo(const std::vector<Element>& before,
                           Context& context,
                           const Bank& bank,
                           const Step& step,
                           bool graph = false,
                           ExpertsKernel fp8 = kChosen,
                           const Rows* shared = nullptr,
                           const Weights* shared_down = nullptr) {
  const int64_t rows = step.x.rows;
  const DType type = sizeof(Element) == sizeof(float) ? DType::kF32 : DType::kBf16;
  const Buffer out = OnDevice(before);
  const Buffer ids = OnDevice(step.ids), weights = OnDevice(step.weights);
  ExpertBankArgs args{.out = TensorView(out.data(), type, {rows, bank.shape.hidden}),
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
  } else if (fp8 != kChosen) {
    BT_CHECK(!bank.shape.holes);
    ExpertBankBy(ctx, args, ExpertsBy(ExpertsQuestionOf(&ctx, args), fp8));
    context.Wait();
  } else {
    ExpertBank(ctx, args);
    context.Wait();
  }
  return FromDevice<Element>(out.data(), before.size());
}

std::vector<float> Product(Context& context,
                           const Bank& bank,
                           const Step& step,
                           bool graph = false,
                           ExpertsKernel fp8 = kChosen,
                           const Rows* shared = nullptr,
                           const Weights* shared_down = nullptr) {
  const auto count = static_cast<size_t>(step.x.rows * bank.shape.hidden);
  return AddTo(std::vector<float>(count, kBefore), context, bank, step, graph, fp8, shared,
               shared_down);
}

void Compare(Context& context,
             const FormCase& form,
             const Bank& bank,
             std::initializer_list<int64_t> rows,
             bool hot,
             std::initializer_list<ExpertsKernel> forms = {kChosen}) {
  for (const int64_t t : rows) {
    const Step step(bank, t, hot);
    const double mean =
        static_cast<double>(t * bank.shape.top_k) / static_cast<double>(bank.shape.slots);
    const std::vector<float> want = Expected(bank, step);
    for (const ExpertsKernel fp8 : forms) {
      const bool wide =
          fp8 == ExpertsKernel::kFp8Grouped128 || fp8 == ExpertsKernel::kFp8GroupedSum;
      const Tolerance tolerance = ToleranceOf(form, wide                                  ? 1000
                                                    : fp8 == ExpertsKernel::kFp8Streaming ? 1
                                                                                          : mean);
      const std::string how = fp8 == kChosen ? "" : std::string(" ") + NameOf(fp8);
      const std::vector<float> got = Product(context, bank, step, false, fp8);
      for (int again = 0; fp8 != kChosen && again < 2; ++again) {
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
      Compare(context, form, bank, {2, 33, 65, 150}, false,
              {ExpertsKernel::kFp8Streaming, ExpertsKernel::kFp8Grouped128});
      Compare(context, form, bank, {1, 9, 30, 96, 129}, true,
              {ExpertsKernel::kFp8Streaming, ExpertsKernel::kFp8Grouped128});
    }
    const Bank bank(form, {7168, 256, 3, 2, true});
    Compare(context, form, bank, {1, 7, 40, 60}, false);
    // More rows than are held here: what is behind the last of them is nothing.
    const Bank held(form, {512, 256, 2, 2, true});
    Compare(context, form, held, {300}, false);
    // Several tiles an expert: blocks in pairs, with odd numbers of tiles and pairs of two experts.
    const Bank one(form, {512, 256, 1, 1}), few(form, {640, 128, 3, 1});
    Compare(context, form, one, {200, 260, 600}, false, {ExpertsKernel::kFp8Grouped128});
    Compare(context, form, few, {580, 900}, false, {ExpertsKernel::kFp8Grouped128});
    Compare(context, form, few, {700}, true, {ExpertsKernel::kFp8Grouped128});
  }
}

// Enough experts for pieces of every size among what blocks have in common, rounded by the down
// product itself and not; whoever takes a piece, bits are the same.
GPU_TEST(ExpertBankTest, Fp8StreamingDealtOut) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    const Bank bank(form, {640, 256, 96, 8});
    Compare(context, form, bank, {16, 90}, false, {ExpertsKernel::kFp8Streaming});
    Compare(context, form, bank, {40}, true, {ExpertsKernel::kFp8Streaming});
  }
}

// Experts without rows, one with all, of several tiles each; shares of blocks that begin within
// one.
GPU_TEST(ExpertBankTest, Fp8TilesDownOfManyRows) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    const Bank one(form, {512, 256, 1, 1}), few(form, {640, 256, 3, 1}),
        many(form, {384, 256, 9, 3});
    Compare(context, form, one, {64, 193, 400}, false, {ExpertsKernel::kFp8Grouped128});
    Compare(context, form, few, {200, 580}, false, {ExpertsKernel::kFp8Grouped128});
    Compare(context, form, few, {450}, true, {ExpertsKernel::kFp8Grouped128});
    Compare(context, form, many, {300}, false, {ExpertsKernel::kFp8Grouped128});
    const Bank held(form, {512, 256, 2, 2, true});
    Compare(context, form, held, {300}, false);
  }
}

// The down product and the sum in one kernel: pieces of every number of columns, experts without
// rows, one with all, experts held elsewhere.
GPU_TEST(ExpertBankTest, Fp8GroupedSum) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    const std::initializer_list<ExpertsKernel> joined = {ExpertsKernel::kFp8GroupedSum};
    for (const Shape& shape : {Shape{512, 256, 4, 2}, Shape{1152, 256, 6, 3}, Shape{384, 256, 9, 1},
                               Shape{2048, 256, 20, 8}}) {
      const Bank bank(form, shape);
      Compare(context, form, bank, {2, 33, 65, 150}, false, joined);
      Compare(context, form, bank, {1, 9, 30, 96, 129}, true, joined);
    }
    const Bank bank(form, {7168, 256, 3, 2});
    Compare(context, form, bank, {1, 40, 60}, false, joined);
    // Blocks of ten tokens and more, where the warps that multiply help to add.
    const Bank tall(form, {256, 256, 12, 2});
    Compare(context, form, tall, {1500, 3300}, false, joined);
    // More pieces of the first product than blocks: those are dealt out.
    for (const int64_t hidden : {128, 640}) {
      const Bank wide(form, {hidden, 256, 160, 4});
      Compare(context, form, wide, {130, 1300}, false, joined);
    }
    // As whole banks choose it, with more rows than are held here; 300 tokens are too many for it.
    const Bank held(form, {512, 256, 4, 4, true});
    Compare(context, form, held, {30, 300}, false);
    // A row that is no number, and what is beside it.
    const Bank few(form, {256, 256, 12, 4});
    const std::vector<float> want =
        Product(context, few, Step(few, 40, true), false, ExpertsKernel::kFp8GroupedSum);
    const std::vector<float> got =
        Product(context, few, Step(few, 40, true, 2), false, ExpertsKernel::kFp8GroupedSum);
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

// Grouped products whose rows lie in order, by the large form (gated and plain; of few steps, of
// eight and more, and of whole eights), against the wide form, which whole banks above hold to the
// reference. Both multiply the same codes. Sums may differ in the bits that the matrix units drop
// (1e-3 of a row), codes of the middle by a unit, results in bf16 likewise.
GPU_TEST(ExpertBankTest, Fp8RowsInOrder) {
  Context context;
  constexpr int64_t kRows = 700, kFirst = 450, kSlots = 2;
  std::vector<MoeTile> tiles;
  for (int32_t begin = 0; begin < kRows;) {
    const auto end = static_cast<int32_t>(begin < kFirst ? kFirst : kRows);
    const int32_t count = std::min(kFp8TilesRows, end - begin);
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
                                      {512, 2048, true},
                                      {520, 512, false},
                                      {520, 1536, false},
                                      {520, 2048, false}}) {
      // Of 2,048 columns parts that begin anywhere: scales differ within 64 rows.
      const Weights w(3, form, kSlots, n, k,
                      k == 2048 ? std::vector<int64_t>{0, 72, 264}
                      : gated   ? std::vector<int64_t>{0, n / 2}
                                : std::vector<int64_t>{0});
      const Rows x(4, kRows, k, 0);
      const int64_t columns = gated ? n / 2 : n, groups = columns / 128;
      const auto product = [&](bool wide) {
        const OpContext ctx = context.get();
        const QuantisedRows in =
            QuantiseRows(ctx, {.x = x.device().data, .stride = k, .rows = kRows, .k = k}, w.device);
        const Buffer out = OnDevice(std::vector<uint16_t>(kRows * columns, 0x7f7f));
        const Buffer scales = OnDevice(std::vector<float>(kRows * (groups + 1)));
        LaunchFp8Tiles({.w = w.device,
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

// A bank with the shared experts, whose second product has the form `shared_form`.
void CompareWithShared(Context& context,
                       const FormCase& form,
                       const FormCase& shared_form,
                       const Shape& shape,
                       std::initializer_list<int64_t> rows,
                       const Tolerance& tolerance) {
  const Bank bank(form, shape);
  const int64_t width = shape.intermediate;
  const Weights shared_down(5, shared_form, 1, shape.hidden, width);
  for (const int64_t t : rows) {
    const Step step(bank, t, false);
    const Rows shared(6, t, 2 * width, 8);
    std::vector<float> gated(static_cast<size_t>(t * width));
    const TensorView gated_view(gated.data(), DType::kF32, {t, width});
    ReferenceSmallOps().swiglu({}, gated_view, shared.reference());
    // As an activation is kept.
    for (float& v : gated) v = ToFloat(ToBf16(v));
    std::vector<float> want(static_cast<size_t>(t * shape.hidden));
    ReferenceSmallOps().linear({}, TensorView(want.data(), DType::kF32, {t, shape.hidden}),
                               gated_view, shared_down.reference);
    const std::vector<float> routed = Expected(bank, step);
    for (size_t i = 0; i < want.size(); ++i) want[i] += routed[i] - kBefore;
    const std::vector<float> got =
        Product(context, bank, step, false, kChosen, &shared, &shared_down);
    ExpectNear(Name(form, shape, t) + " shared", got, want, shape.hidden, tolerance.largest, 0,
               tolerance.typical);
  }
}

// With the shared experts' second product: of few tokens in the same kernels, of more before them.
GPU_TEST(ExpertBankTest, Fp8WithSharedExperts) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const Shape& shape : {Shape{7168, 256, 12, 8, true}, Shape{512, 384, 4, 3}}) {
      CompareWithShared(context, form, form, shape, {1, 4, 7, 16, 21}, {0.3f, 1.5e-2f});
    }
  }
}

// Of more tokens they come before the bank, which adds to them.
GPU_TEST(ExpertBankTest, SharedExpertsOfManyTokens) {
  Context context;
  const FormCase bf16 = kForms[0];
  for (const FormCase& form : kForms) {
    if (form.quantise_input) {
      CompareWithShared(context, form, form, {512, 384, 40, 8, true}, {17, 50, 530},
                        {0.3f, 1.5e-2f});
    } else if (form.form == WeightForm::kInt4Group) {
      CompareWithShared(context, form, bf16, {512, 256, 64, 8, true}, {17, 50}, {3e-2f, 6e-3f});
      CompareWithShared(context, form, bf16, {256, 256, 900, 8}, {530}, {3e-2f, 6e-3f});
    }
  }
}

// Results in bf16 are those in f32, rounded once.
GPU_TEST(ExpertBankTest, ResultsInBf16AreThoseInF32Rounded) {
  Context context;
  const auto check = [&](const FormCase& form, const Bank& bank, int64_t rows, ExpertsKernel fp8) {
    const Step step(bank, rows, false);
    std::vector<float> exact;
    std::vector<Bf16> rounded;
    for (int64_t i = 0; i < rows * bank.shape.hidden; ++i) {
      exact.push_back(static_cast<float>(i * 37 % 127 - 63) / 64);  // is a bf16
      rounded.push_back(ToBf16(exact.back()));
    }
    exact = AddTo(exact, context, bank, step, false, fp8);
    rounded = AddTo(rounded, context, bank, step, false, fp8);
    int64_t wrong = 0;
    for (size_t i = 0; i < exact.size(); ++i) wrong += rounded[i].bits != ToBf16(exact[i]).bits;
    if (wrong != 0) {
      Fail(Name(form, bank.shape, rows) + ": " + std::to_string(wrong) + " results differ");
    }
  };
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {256, 128, 12, 4, true});
    for (const int64_t rows : {20, 70}) check(form, bank, rows, kChosen);
    if (!form.quantise_input) continue;
    const Bank whole(form, {640, 256, 6, 3});
    for (const ExpertsKernel fp8 : {ExpertsKernel::kFp8Streaming, ExpertsKernel::kFp8Grouped128,
                                    ExpertsKernel::kFp8GroupedSum}) {
      for (const int64_t rows : {3, 65}) check(form, whole, rows, fp8);
    }
  }
}

// The shared experts' part is rounded before the others' sum is added, and with it once more.
GPU_TEST(ExpertBankTest, SharedExpertsInBf16) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input && form.form != WeightForm::kInt4Group) continue;
    const Bank bank(form, {512, 256, 6, 3, true});
    const FormCase plain = form.quantise_input ? form : kForms[0];
    const Weights shared_down(5, plain, 1, 512, 256);
    for (const int64_t rows : {3, 40}) {
      const Step step(bank, rows, false);
      const Rows shared(6, rows, 512, 8);
      const std::vector<float> want =
          Product(context, bank, step, false, kChosen, &shared, &shared_down);
      const std::vector<Bf16> rounded = AddTo(std::vector<Bf16>(want.size()), context, bank, step,
                                              false, kChosen, &shared, &shared_down);
      std::vector<float> got;
      for (const Bf16 v : rounded) got.push_back(ToFloat(v));
      // Of few rows other kernels make the results in f32.
      const Tolerance tolerance = rows > 16 ? Tolerance{0x1p-5f, 4e-3f} : ToleranceOf(form, 4);
      ExpectNear(Name(form, bank.shape, rows) + " shared in bf16", got, want, 512,
                 tolerance.largest, 0, tolerance.typical);
    }
  }
}

GPU_TEST(ExpertBankTest, Fp8NaNStaysInItsRow) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    const Bank bank(form, {512, 256, 4, 2});
    const std::vector<float> want =
        Product(context, bank, Step(bank, 40, true), false, ExpertsKernel::kFp8Grouped128);
    const std::vector<float> got =
        Product(context, bank, Step(bank, 40, true, 5), false, ExpertsKernel::kFp8Grouped128);
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

// The codes that a norm wrote, and nothing else of the rows, make the same bits of a few tokens.
GPU_TEST(ExpertBankTest, Fp8OfFewTokensTakesKnownCodes) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const int64_t hidden : {512, 2560}) {
      const Bank bank(form, {static_cast<int32_t>(hidden), 256, 12, 8});
      for (const int64_t rows : {1, 3}) {
        const Step step(bank, rows, false);
        const auto count = static_cast<size_t>(rows * hidden);
        const Buffer ids = OnDevice(step.ids), weights = OnDevice(step.weights);
        const TensorView x = step.x.device();
        const auto product = [&](const OpContext& ctx) {
          const Buffer out = OnDevice(std::vector<float>(count, kBefore));
          ExpertBank(ctx, {.out = TensorView(out.data(), DType::kF32, {rows, hidden}),
                           .x = x,
                           .ids = TensorView(ids.data(), DType::kI32, {rows, 8}),
                           .weights = TensorView(weights.data(), DType::kF32, {rows, 8}),
                           .gate_up = bank.gate_up.device,
                           .down = bank.down.device,
                           .slot_of = bank.slot_of});
          context.Wait();
          return FromDevice<float>(out.data(), count);
        };
        const std::vector<float> want = product(context.get());
        OpContext ctx = context.get();
        const RowSource source{.x = x.data, .stride = x.stride[0], .rows = rows, .k = hidden};
        const QuantisedRows codes = QuantiseRows(ctx, source, bank.gate_up.device);
        RoundedRows rounded{.codes = const_cast<void*>(codes.x),
                            .scales = const_cast<float*>(codes.x_scales),
                            .width = hidden,
                            .of = x.data,
                            .rows = rows,
                            .stride = x.stride[0]};
        const Beside with{.rounded = &rounded};
        ctx.beside = &with;
        for (int64_t t = 0; t < rows; ++t) {
          Clear(ctx, TensorView(x.rows(t, 1).data, DType::kBf16, {1, hidden}));
        }
        GPU_EXPECT(product(ctx) == want);
      }
    }
  }
}

// The norm's second copy, and nothing else of the rows, makes the same bits.
GPU_TEST(ExpertBankTest, TakesRowsThatTheNormOrdered) {
  Context context;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const FormCase form{"int4 group", WeightForm::kInt4Group};
  struct Case {
    Shape shape;
    int64_t rows;
    bool reads;
  };
  // In the wide and the joined form, of a middling number of rows, streaming.
  for (const Case& one : {Case{{384, 128, 6, 2}, 40, true}, Case{{256, 256, 3, 2}, 47, true},
                          Case{{256, 256, 8, 4}, 40, true}, Case{{384, 128, 16, 2}, 40, false}}) {
    const Bank bank(form, one.shape);
    const Step step(bank, one.rows, false);
    const int64_t hidden = one.shape.hidden;
    const auto count = static_cast<size_t>(one.rows * hidden);
    std::vector<float> sum(count), delta(count), weight(static_cast<size_t>(hidden), 1.5f);
    for (float& value : sum) value = normal(random);
    for (float& value : delta) value = normal(random);
    const Buffer delta_memory = OnDevice(delta), weight_memory = OnDevice(weight);
    const Buffer ids = OnDevice(step.ids), weights = OnDevice(step.weights);
    const Buffer normed = OnDevice(std::vector<uint16_t>(count));
    const Buffer ordered_memory = OnDevice(std::vector<uint16_t>(count, 0x7FC0));
    const auto view = [&](const Buffer& memory, DType type, int64_t width) {
      return TensorView(memory.data(), type, {one.rows, width});
    };
    const auto norm = [&](OrderedRows* ordered) {
      const Buffer residual = OnDevice(sum);
      OpContext ctx = context.get();
      const Beside with{.ordered = ordered};
      ctx.beside = &with;
      AddRmsNorm(ctx, view(normed, DType::kBf16, hidden), view(residual, DType::kF32, hidden),
                 view(delta_memory, DType::kF32, hidden),
                 TensorView(weight_memory.data(), DType::kF32, {hidden}), 1e-5f);
      context.Wait();
      return FromDevice<float>(residual.data(), count);
    };
    const auto product = [&](OrderedRows* ordered) {
      const Buffer out = OnDevice(std::vector<float>(count, kBefore));
      const ExpertBankArgs args{.out = view(out, DType::kF32, hidden),
                                .x = view(normed, DType::kBf16, hidden),
                                .ids = view(ids, DType::kI32, one.shape.top_k),
                                .weights = view(weights, DType::kF32, one.shape.top_k),
                                .gate_up = bank.gate_up.device,
                                .down = bank.down.device,
                                .slot_of = bank.slot_of};
      GPU_EXPECT(BankReadsOrdered(args) == one.reads);
      OpContext ctx = context.get();
      const Beside with{.ordered = ordered};
      ctx.beside = &with;
      ExpertBank(ctx, args);
      context.Wait();
      return FromDevice<float>(out.data(), count);
    };
    const std::vector<float> residual = norm(nullptr), want = product(nullptr);
    const std::vector<uint16_t> rows = FromDevice<uint16_t>(normed.data(), count);
    OrderedRows ordered{.data = ordered_memory.data()};
    GPU_EXPECT(product(&ordered) == want);  // a copy of nothing is not taken
    GPU_EXPECT(norm(&ordered) == residual);
    GPU_EXPECT(FromDevice<uint16_t>(normed.data(), count) == rows);
    GPU_EXPECT(ordered.of == normed.data() && ordered.rows == one.rows);
    if (one.reads) Clear(context.get(), view(normed, DType::kBf16, hidden));
    GPU_EXPECT(product(&ordered) == want);
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
