// ExpertBank of weights in e4m3: the kernels of fp8_bank.h, each in turn, against the reference.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "ops/cuda/experts/expert_bank_test_compare.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::cuda {
namespace {

using namespace bank_test;

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
    const std::initializer_list<ExpertsKernel> sum = {ExpertsKernel::kFp8GroupedSum};
    for (const Shape& shape : {Shape{512, 256, 4, 2}, Shape{1152, 256, 6, 3}, Shape{384, 256, 9, 1},
                               Shape{2048, 256, 20, 8}}) {
      const Bank bank(form, shape);
      Compare(context, form, bank, {2, 33, 65, 150}, false, sum);
      Compare(context, form, bank, {1, 9, 30, 96, 129}, true, sum);
    }
    const Bank bank(form, {7168, 256, 3, 2});
    Compare(context, form, bank, {1, 40, 60}, false, sum);
    // Blocks of ten tokens and more, where the warps that multiply help to add.
    const Bank tall(form, {256, 256, 12, 2});
    Compare(context, form, tall, {1500, 3300}, false, sum);
    // More pieces of the first product than blocks: those are dealt out.
    for (const int64_t hidden : {128, 640}) {
      const Bank many(form, {hidden, 256, 160, 4});
      Compare(context, form, many, {130, 1300}, false, sum);
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
// eight and more, and of whole eights), against tiles of single blocks (fp8_tiles.cu), which whole
// banks above hold to the reference. Both multiply the same codes. Sums may differ in the bits that
// the matrix units drop (1e-3 of a row), codes of the middle by a unit, results in bf16 likewise.
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
      const auto product = [&](bool gather) {
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
                        .gather = gather},
                       context.rank->launches());
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

}  // namespace
}  // namespace baltoro::cuda
