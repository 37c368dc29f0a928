// Linear with weights in e4m3, by the kernels of few, tens, hundreds and thousands of rows.

#include <cmath>
#include <tuple>

#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/linear/linear_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace linear_test;

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

}  // namespace
}  // namespace baltoro::cuda
