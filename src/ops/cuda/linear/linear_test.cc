// Linear in every weight form against the reference (f64 sums). Tolerances, in root mean squares of
// a row: f32 sums of exact products 1e-4; kInt4Group rounds each weight to bf16 first, 2e-2; more
// than 8 rows with e4m3 inputs are added up by the hardware with fewer bits than f32 has, 5e-3.
// Results in bf16 may besides be off by half a unit.

#include <algorithm>

#include "device/cuda/device_info.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/linear/bf16_rows1024.h"
#include "ops/cuda/linear/bf16_rows128.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/linear/tiles/tiles_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace product_test;

float ToleranceOf(const FormCase& form, int64_t rows) {
  if (form.form == WeightForm::kInt4Group) return 2e-2f;
  return form.quantise_input && rows > 8 ? 5e-3f : 1e-4f;
}

struct Answer {
  std::vector<float> values;  // [rows, n]
  bool gap_kept = true;
};

// The product, into rows with a gap that must not be written. `coded`: as after a norm that wrote
// the codes of x.
Answer Product(Context& context,
               const Rows& x,
               const Weights& w,
               DType out_type,
               int64_t gap,
               bool coded = false) {
  const int64_t n = w.device.n, stride = n + gap, size = SizeOf(out_type);
  const std::vector<char> before(static_cast<size_t>(x.rows * stride * size), '\x7f');
  const Buffer memory = OnDevice(before);
  TensorView out(memory.data(), out_type, {x.rows, n});
  out.stride[0] = stride;
  OpContext ctx = context.get();
  RoundedRows rounded;
  if (coded) {
    const RowSource source{
        .x = x.memory.data(), .stride = x.stride, .rows = x.rows, .k = w.device.k};
    const QuantisedRows codes = QuantiseRows(ctx, source, w.device);
    rounded = {.codes = const_cast<void*>(codes.x),
               .scales = const_cast<float*>(codes.x_scales),
               .width = w.device.k,
               .of = x.memory.data(),
               .rows = x.rows,
               .stride = x.stride};
    const Beside with{.rounded = &rounded};
    ctx.beside = &with;
    // As many as leave room for another block on the multiprocessor.
    const LinearPlan plan = ChooseLinear(QuestionOf(ctx, out, x.device(), w.device), ThisCard());
    GPU_EXPECT((plan.kernel == LinearKernel::kFp8Rows16) ==
               (x.rows <= 8 && w.device.n < 2000 && x.rows * w.device.k <= 7 * 7168));
  }
  Linear(ctx, out, x.device(), w.device);
  context.Wait();
  const auto bytes = FromDevice<char>(memory.data(), before.size());
  Answer answer;
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t c = 0; c < stride; ++c) {
      const char* at = &bytes[static_cast<size_t>((t * stride + c) * size)];
      if (c >= n) {
        answer.gap_kept =
            answer.gap_kept && std::all_of(at, at + size, [](char b) { return b == '\x7f'; });
        continue;
      }
      float value = 0;
      if (out_type == DType::kF32) {
        std::memcpy(&value, at, 4);
      } else {
        Bf16 bf16;
        std::memcpy(&bf16, at, 2);
        value = ToFloat(bf16);
      }
      answer.values.push_back(value);
    }
  }
  return answer;
}

std::vector<float> Expected(const Rows& x, const Weights& w) {
  std::vector<float> want(static_cast<size_t>(x.rows * w.device.n));
  ReferenceSmallOps().linear({}, TensorView(want.data(), DType::kF32, {x.rows, w.device.n}),
                             x.reference(), w.reference);
  return want;
}

void Compare(Context& context,
             const FormCase& form,
             const Weights& w,
             int64_t rows,
             int64_t x_gap,
             DType out_type,
             int64_t out_gap) {
  const Rows x(static_cast<uint32_t>(rows), rows, w.device.k, x_gap);
  const Answer got = Product(context, x, w, out_type, out_gap);
  const std::string what = std::string(form.name) + " n " + std::to_string(w.device.n) + " k " +
                           std::to_string(w.device.k) + " T " + std::to_string(rows) +
                           (out_type == DType::kF32 ? " f32" : " bf16");
  ExpectNear(what, got.values, Expected(x, w), w.device.n, ToleranceOf(form, rows),
             out_type == DType::kF32 ? 0.0f : 0x1p-8f, ToleranceOf(form, rows) / 5);
  if (!got.gap_kept) Fail(what + ": wrote between rows");
}

GPU_TEST(LinearTest, SmallShapesInEveryForm) {
  Context context;
  for (const FormCase& form : kForms) {
    // pocket's, one strip, and shapes with tails of every kind.
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{256, 128},
                               {704, 256},
                               {16, 128},
                               {1536, 128},
                               {48, 160},
                               {40, 96},
                               {129, 352},
                               {9, 32},
                               {1, 64}}) {
      const Weights w(static_cast<uint32_t>(n + k), form, 1, n, k);
      for (const int64_t rows : {1, 3, 8, 17, 33, 129}) {
        Compare(context, form, w, rows, 8, DType::kF32, 4);
      }
      Compare(context, form, w, 5, 0, DType::kBf16, 8);
      Compare(context, form, w, 40, 16, DType::kBf16, 0);
      if (form.quantise_input) Compare(context, form, w, 160, 16, DType::kBf16, 0);
    }
  }
}

GPU_TEST(LinearTest, RankShapesInEveryForm) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{512, 7168},
                               {384, 7168},
                               {1536, 1536},
                               {7168, 256},
                               {7168, 1024},
                               {2112, 7168}}) {
      const Weights w(static_cast<uint32_t>(n), form, 1, n, k);
      Compare(context, form, w, 1, 0, DType::kF32, 0);
      Compare(context, form, w, 12, 64, DType::kBf16, 0);
      if (form.form == WeightForm::kBf16) {
        Compare(context, form, w, 7, 8, DType::kBf16, 2);
        Compare(context, form, w, 64, 8, DType::kBf16, 0);
      }
      if (form.quantise_input) {
        for (const int64_t rows : {2, 4, 8}) Compare(context, form, w, rows, 8, DType::kF32, 2);
      }
      if (k == 7168 || k == 1024) continue;
      Compare(context, form, w, 65, 64, DType::kF32, 0);
      Compare(context, form, w, 300, 0, DType::kBf16, 8);
    }
  }
}

// Every form of the kernel of tens of rows, whatever the plan would be: tails of rows, columns and
// strips, more stages than the ring has, blocks that share columns unevenly. Its sums run in a
// fixed order, so the same product gives the same bits.
GPU_TEST(LinearTest, TensOfRowsInEveryPlan) {
  Context context;
  const FormCase& form = kForms[0];
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{200, 1096}, {64, 512}, {130, 576}, {2, 1024}}) {
    const Weights w(static_cast<uint32_t>(n), form, 1, n, k);
    for (const int64_t count : {9, 32, 33, 64, 77, 128, 131}) {
      const Rows x(static_cast<uint32_t>(count), count, k, 8);
      const std::vector<float> want = Expected(x, w);
      for (const int form_of : {1, 2, 3, 4, 5, 6}) {
        for (const int split : {1, 2, 4, 8}) {
          // Rings as the plan would have them, then small ones with strips of odd heights.
          const int groups = (form_of + 1) / 2;
          const bool tight = form_of % 2 == 0;
          Bf16Rows128Plan plan{.groups = groups,
                               .tile = count <= 32   ? 32
                                       : count <= 64 ? 64
                                                     : 128,
                               .split = split};
          if (groups == 3 && count > 64) continue;
          FitBf16Rows128Rings({.rows = count, .k = k, .n = n}, ThisCard(), plan);
          if (tight) {
            plan.strip_rows = groups * 64 - (groups == 2 ? 10 : 60);
            plan.stages = groups == 2 ? 2 : 4;
            plan.inputs = groups == 2 ? 5 : 2;
          }
          const auto elements = static_cast<size_t>(count * n);
          const Buffer memory = OnDevice(std::vector<float>(elements, kNaN));
          const Buffer again = OnDevice(std::vector<float>(elements, kNaN));
          for (const Buffer* to : {&memory, &again}) {
            const TensorView out(to->data(), DType::kF32, {count, n});
            Bf16Rows128Product(context.get(), plan, out, x.device(), w.device);
          }
          context.Wait();
          const auto got = FromDevice<float>(memory.data(), elements);
          const std::string what = "n " + std::to_string(n) + " k " + std::to_string(k) + " T " +
                                   std::to_string(count) + " groups " + std::to_string(groups) +
                                   " split " + std::to_string(split) + (tight ? " tight" : "");
          ExpectNear(what, got, want, n, 1e-4f, 0, 2e-5f);
          if (got != FromDevice<float>(again.data(), elements)) Fail(what + ": other bits");
        }
      }
    }
  }
}

// The same of hundreds of rows: with one tile and two a cluster, tiles that are not there, parts
// that share columns and rows unevenly, results with gaps between rows.
GPU_TEST(LinearTest, HundredsOfRowsInEveryPlan) {
  Context context;
  const FormCase& form = kForms[0];
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{300, 1096}, {128, 512}, {132, 576}, {4, 1024}}) {
    const Weights w(static_cast<uint32_t>(n), form, 1, n, k);
    for (const int64_t count : {65, 128, 131, 256, 300}) {
      const Rows x(static_cast<uint32_t>(count), count, k, 8);
      const std::vector<float> want = Expected(x, w);
      for (const int columns : {64, 96, 128}) {
        for (const auto& [parts, tiles] :
             {std::pair<int, int>{1, 1}, {2, 1}, {4, 1}, {8, 1}, {1, 2}, {2, 2}, {4, 2}}) {
          if (tiles == 2 && columns < 128) continue;
          const Bf16Rows1024Plan plan{.columns = columns, .parts = parts, .tiles = tiles};
          const int64_t stride = n + 4;
          const auto elements = static_cast<size_t>(count * stride);
          const Buffer memory = OnDevice(std::vector<float>(elements, -3.0f));
          const Buffer again = OnDevice(std::vector<float>(elements, -3.0f));
          for (const Buffer* to : {&memory, &again}) {
            TensorView out(to->data(), DType::kF32, {count, n});
            out.stride[0] = stride;
            Bf16Rows1024Product(context.get(), plan, out, x.device(), w.device);
          }
          context.Wait();
          const auto all = FromDevice<float>(memory.data(), elements);
          const std::string what = "n " + std::to_string(n) + " k " + std::to_string(k) + " T " +
                                   std::to_string(count) + " columns " + std::to_string(columns) +
                                   " parts " + std::to_string(parts) + " tiles " +
                                   std::to_string(tiles);
          std::vector<float> got;
          bool kept = true;
          for (size_t i = 0; i < elements; ++i) {
            const bool gap = static_cast<int64_t>(i) % stride >= n;
            if (gap) kept = kept && all[i] == -3.0f;
            if (!gap) got.push_back(all[i]);
          }
          ExpectNear(what, got, want, n, 1e-4f, 0, 2e-5f);
          if (!kept) Fail(what + ": wrote between rows");
          if (all != FromDevice<float>(again.data(), elements)) Fail(what + ": other bits");
        }
      }
    }
  }
}

// As it is planned for large matrices: tall strips of which the last group has four rows, rings
// smaller than a block's share, blocks that have theirs whole.
GPU_TEST(LinearTest, TensOfRowsAsPlanned) {
  Context context;
  const FormCase& form = kForms[0];
  for (const auto& [n, k, rows] : {std::tuple<int64_t, int64_t, int64_t>{2112, 7168, 10},
                                   {2112, 7168, 40},
                                   {7168, 1024, 61},
                                   {1536, 1536, 33},
                                   {7168, 256, 64}}) {
    const Weights w(static_cast<uint32_t>(n), form, 1, n, k);
    Compare(context, form, w, rows, 8, DType::kBf16, 8);
  }
}

// As the kernels for hundreds of rows take them: odd numbers of steps and tiles, strips beyond the
// last row of the matrix; rows of one step, of whole fours, and one and a half times the eight
// whose scales come together; nine steps, whose scales the copy engine cannot fetch. Of 1,024 rows
// of three steps the large form takes 64, 128, 144, 192 and 256 rows of weights at a time up to
// 1,024, 2,048, 2,304, 3,072 and more of them.
GPU_TEST(LinearTest, ManyRowsOfFp8) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{520, 1152},
                               {264, 256},
                               {128, 128},
                               {520, 1536},
                               {264, 512}}) {
      const Weights w(static_cast<uint32_t>(n), form, 1, n, k);
      for (const int64_t rows : {1024, 1100}) Compare(context, form, w, rows, 8, DType::kBf16, 8);
      Compare(context, form, w, 1100, 8, DType::kF32, 4);
    }
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{1928, 384}, {2184, 384}, {2824, 128}, {3080, 384}}) {
      const Weights w(static_cast<uint32_t>(n), form, 1, n, k);
      Compare(context, form, w, 1024, 8, DType::kBf16, 8);
      Compare(context, form, w, 1024, 8, DType::kF32, 12);
    }
    // Of eight steps 144 and 192 rows of weights; parts that begin anywhere: scales differ within
    // 64 rows.
    for (const int64_t n : {2184, 2504}) {
      const Weights w(static_cast<uint32_t>(n), form, 1, n, 1024, {0, 72, 264});
      Compare(context, form, w, 1024, 8, DType::kBf16, 8);
      Compare(context, form, w, 1024, 8, DType::kF32, 12);
    }
    // Parts that begin anywhere: strips whose scales differ within 128 rows.
    const Weights parts(5, form, 1, 392, 1024, {0, 72, 264});
    Compare(context, form, parts, 1030, 0, DType::kBf16, 0);
  }
}

bool GoesByTens(int64_t rows, int64_t n, int64_t k) {
  const MatrixFacts w{.form = WeightForm::kFp8Block, .quantise_input = true, .n = n, .k = k};
  return PlanFp8Rows256(w, FactsOf(TensorView(nullptr, DType::kF32, {rows, n})), ThisCard())
      .has_value();
}

// As the kernel for tens of rows takes them: strips and parts of every number, rows that leave
// slices of them empty, tiles of 64 rows whose last slice is shorter (520 rows of weights: five and
// six parts), the same bits again, a row that is no number.
GPU_TEST(LinearTest, TensOfRowsOfFp8) {
  Context context;
  for (const int64_t rows : {9, 16, 64}) {
    GPU_EXPECT(GoesByTens(rows, 2112, 7168) && GoesByTens(rows, 512, 7168));
    GPU_EXPECT(GoesByTens(rows, 7168, 1024) && GoesByTens(rows, 7168, 256));
    GPU_EXPECT(!GoesByTens(rows, 20480, 7168) && !GoesByTens(rows, 7168, 128));
  }
  for (const int64_t rows : {65, 130, 256}) {
    GPU_EXPECT(GoesByTens(rows, 520, 1536) && GoesByTens(rows, 520, 1152));
  }
  GPU_EXPECT(!GoesByTens(257, 520, 1536));
  GPU_EXPECT(!GoesByTens(8, 2112, 7168) && !GoesByTens(65, 2112, 7168));
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{512, 7168},
                               {2112, 7168},
                               {40, 3072},
                               {1000, 3200},
                               {7168, 1024},
                               {7160, 256},
                               {1528, 1536},
                               {520, 1536},
                               {520, 1152},
                               {4224, 3072}}) {
      const Weights w(static_cast<uint32_t>(n), form, 1, n, k);
      for (const int64_t rows : {9, 17, 33, 64, 65, 100, 130, 200, 256}) {
        if (n > 2000 && rows % 2 != 0 && rows != 33) continue;
        if (rows > 64 && (k > 1536 || (n > 1000 && rows % 100 != 0))) continue;
        Compare(context, form, w, rows, 8, rows % 2 == 0 ? DType::kF32 : DType::kBf16, 8);
      }
      const Rows clean(5, 20, k, 0), broken(5, 20, k, 0, 2);
      const Answer want = Product(context, clean, w, DType::kF32, 0);
      GPU_EXPECT(Product(context, clean, w, DType::kF32, 0).values == want.values);
      const Answer got = Product(context, broken, w, DType::kF32, 0);
      int64_t wrong = 0;
      for (int64_t at = 0; at < std::ssize(got.values); ++at) {
        wrong += at / n == 2 ? !std::isnan(got.values[at]) : got.values[at] != want.values[at];
      }
      if (wrong != 0) Fail(std::to_string(wrong) + " numbers are wrong beside a NaN");
    }
  }
}

bool GoesByHundreds(int64_t rows, int64_t n, int64_t k) {
  Fp8Product product;
  product.w = {.form = WeightForm::kFp8Block, .n = n, .k = k, .count = 1, .quantise_input = true};
  product.x_row_bytes = k;
  product.out_stride = n;
  product.rows = rows;
  const Fp8TilesQuestion question = QuestionOf(product, true);
  return ChooseFp8Tiles(question, ThisCard()).pairs &&
         (rows > 256 || Fp8PairsFill(rows, question.w, ThisCard()));
}

// As the kernel for hundreds of rows takes fewer of them, where the matrix fills the card: one and
// two tiles, two pairs of them; blocks that share the columns in halves (80 rows of weights at a
// time, of two pairs of tiles 144), of twenty steps 8 and 12; strips beyond the last row of the
// matrix; the same bits again, a row that is no number.
GPU_TEST(LinearTest, SomeHundredRowsOfFp8) {
  Context context;
  for (const int64_t rows : {65, 256, 512}) {
    GPU_EXPECT(GoesByHundreds(rows, 2112, 7168));
    GPU_EXPECT(GoesByHundreds(rows, 7168, 256) == (rows > 128));
    GPU_EXPECT(GoesByHundreds(rows, 512, 7168) == (rows > 256) && !GoesByHundreds(64, 7168, 256));
  }
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const auto& [n, k, rows] : {std::tuple<int64_t, int64_t, int64_t>{2824, 256, 140},
                                     {2824, 1024, 130},
                                     {1416, 2560, 90},
                                     {1416, 2560, 256},
                                     {1416, 3072, 300},
                                     {264, 2048, 260}}) {
      const Weights w(static_cast<uint32_t>(n), form, 1, n, k, {0, 72, 264});
      GPU_EXPECT(GoesByHundreds(rows, n, k));
      Compare(context, form, w, rows, 8, DType::kBf16, 8);
      const Rows clean(5, rows, k, 0), broken(5, rows, k, 0, 2);
      const Answer want = Product(context, clean, w, DType::kF32, 4);
      ExpectNear("some hundred rows", want.values, Expected(clean, w), n, ToleranceOf(form, rows),
                 0, ToleranceOf(form, rows) / 5);
      GPU_EXPECT(Product(context, clean, w, DType::kF32, 4).values == want.values);
      const Answer got = Product(context, broken, w, DType::kF32, 4);
      int64_t wrong = 0;
      for (int64_t at = 0; at < std::ssize(got.values); ++at) {
        wrong += at / n == 2 ? !std::isnan(got.values[at]) : got.values[at] != want.values[at];
      }
      if (wrong != 0) Fail(std::to_string(wrong) + " numbers are wrong beside a NaN");
    }
  }
}

// Rows whose codes a norm has written.
GPU_TEST(LinearTest, CodedRowsOfFp8) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{2112, 7168}, {512, 7168}, {56, 128}, {24, 1152}}) {
      const Weights w(static_cast<uint32_t>(n), form, 1, n, k);
      for (const int64_t rows : {1, 3, 8, 20}) {
        if (n > 2000 && rows > 8) continue;
        const Rows x(static_cast<uint32_t>(rows), rows, k, 8, 2);
        const DType type = rows == 3 ? DType::kBf16 : DType::kF32;
        const Answer got = Product(context, x, w, type, 8, true);
        const std::string what = "coded n " + std::to_string(n) + " k " + std::to_string(k) +
                                 " rows " + std::to_string(rows);
        ExpectNear(what, got.values, Expected(x, w), n, ToleranceOf(form, rows),
                   type == DType::kBf16 ? 0x1p-8f : 0, ToleranceOf(form, rows) / 5);
        if (!got.gap_kept) Fail(what + ": wrote between rows");
      }
    }
  }
}

GPU_TEST(LinearTest, OddAndUnalignedRows) {
  Context context;
  for (const FormCase& form : kForms) {
    // Odd k only where a form has no groups; odd strides everywhere.
    const bool groups = form.form == WeightForm::kInt4Group;
    const Weights w(7, form, 1, 37, groups ? 64 : 75);
    for (const int64_t rows : {1, 4, 20}) {
      Compare(context, form, w, rows, 3, DType::kF32, 1);
      Compare(context, form, w, rows, 1, DType::kBf16, 3);
    }
  }
}

GPU_TEST(LinearTest, PartsPackedApartAreOneMatrix) {
  Context context;
  for (const FormCase& form : kForms) {
    // Gate and up of 96 rows, then q_a of 128 and kv_a of 72 in ranges of their own.
    const Weights gate_up(3, form, 1, 192, 256, {0, 96});
    const Weights qkv(4, form, 1, 200, 256, {0, 64, 128});
    for (const int64_t rows : {2, 30}) {
      Compare(context, form, gate_up, rows, 0, DType::kF32, 0);
      Compare(context, form, qkv, rows, 0, DType::kF32, 0);
    }
    if (!form.quantise_input) continue;
    Compare(context, form, gate_up, 200, 0, DType::kF32, 0);
    Compare(context, form, qkv, 140, 0, DType::kBf16, 0);
  }
}

GPU_TEST(LinearTest, NaNStaysInItsRow) {
  Context context;
  for (const FormCase& form : kForms) {
    const Weights w(11, form, 1, 272, 384);
    for (const int64_t rows : {4, 16, 30, 70, 150}) {
      const Rows clean(5, rows, 384, 0), broken(5, rows, 384, 0, 2);
      const Answer want = Product(context, clean, w, DType::kF32, 0);
      const Answer got = Product(context, broken, w, DType::kF32, 0);
      int64_t others = 0, numbers = 0;
      for (int64_t at = 0; at < std::ssize(got.values); ++at) {
        if (at / 272 == 2) {
          numbers += !std::isnan(got.values[at]);
        } else {
          others += got.values[at] != want.values[at];
        }
      }
      const std::string what = std::string(form.name) + " T " + std::to_string(rows) + ": ";
      if (others != 0) Fail(what + std::to_string(others) + " numbers of other rows changed");
      if (numbers != 0) Fail(what + std::to_string(numbers) + " numbers of its row are none");
    }
  }
}

GPU_TEST(LinearTest, RunsInAGraphAndNoRowsAreNothing) {
  Context context;
  const Weights bf16(1, kForms[0], 1, 256, 512), fp8(2, kForms[3], 1, 256, 512);
  const Rows few(1, 3, 512, 0), many(2, 100, 512, 0), none(3, 0, 512, 0);
  for (const Weights* w : {&bf16, &fp8}) {
    for (const Rows* x : {&few, &many, &none}) {
      const Answer want = Product(context, *x, *w, DType::kF32, 0);  // the library's first time
      const Buffer memory = OnDevice(std::vector<float>(static_cast<size_t>(x->rows * 256), kNaN));
      const TensorView out(memory.data(), DType::kF32, {x->rows, 256});
      const OpContext ctx = context.get();
      const auto graph = Capture(ctx, [&] { Linear(ctx, out, x->device(), w->device); });
      graph->Launch(ctx);
      context.Wait();
      const auto got = FromDevice<float>(memory.data(), static_cast<size_t>(x->rows * 256));
      GPU_EXPECT(got == want.values);
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
