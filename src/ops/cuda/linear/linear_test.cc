// Linear in every weight form, and the plans of bf16 weights. What is of e4m3 weights alone is in
// linear_test_fp8.cc.

#include <cmath>
#include <tuple>

#include "device/cuda/device_info.h"
#include "ops/cuda/linear/bf16_rows1024.h"
#include "ops/cuda/linear/bf16_rows128.h"
#include "ops/cuda/linear/linear_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace linear_test;

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
