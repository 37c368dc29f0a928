// Embedding, norms, rotary embedding and the cache write, held to the reference.

#include <gtest/gtest.h>

#include <numeric>

#include "ops/cpu/test_tensors.h"
#include "support/support.h"

namespace baltoro::cpu {
namespace {

using baltoro::test::Near;
using baltoro::test::Tolerance;
using test::Context;
using test::Random;
using test::Tensor;

constexpr DType kTypes[] = {DType::kBf16, DType::kF32};
constexpr int64_t kRowCounts[] = {0, 1, 2, 37};

// One rounding to the type is all that an operation may add to its f32 arithmetic.
Tolerance For(DType type) {
  return type == DType::kF32 ? Tolerance{.nmse = 1e-12, .max_abs = 1e-5}
                             : Tolerance{.nmse = 1e-5, .max_abs = 0.05};
}

// Rows [t, t + 1) of a result must not depend on how it was computed.
void ExpectRow(const Tensor& whole, int64_t t, const Tensor& alone) {
  const int64_t width = alone.view.num_elements();
  for (int64_t i = 0; i < width; ++i) ASSERT_EQ(alone.at(i), whole.at(t * width + i)) << t;
}

Tensor Ids(std::initializer_list<int32_t> values) {
  Tensor tensor(DType::kI32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.view.as<int32_t>());
  return tensor;
}

TEST(EmbedTest, RowsAreThoseOfTheTable) {
  Context context(2);
  for (const DType type : kTypes) {
    const Tensor table = Random(1, type, {10, 37}, 1);
    const Tensor ids = Ids({9, 0, 3, 3});
    Tensor got(DType::kF32, {4, 37});
    Tensor want(DType::kF32, {4, 37});

    Embed(context.get(), got.view, table.view, ids.view);

    reference::Embed({}, want.view, table.view, ids.view);
    EXPECT_EQ(got.values(), want.values());
    EXPECT_EQ(got.at(0), table.at(9 * 37));
  }
}

TEST(RmsNormTest, AgreesWithTheReference) {
  Context context(2);
  for (const DType in : kTypes) {
    for (const DType out : kTypes) {
      for (const int64_t rows : kRowCounts) {
        for (const int64_t width : {1, 15, 16, 17, 512, 1536, 2048, 7168}) {
          const Tensor x = Random(2, in, {rows, width}, 3);
          const Tensor weight = Random(3, DType::kF32, {width}, 1);
          Tensor got(out, {rows, width});
          Tensor want(DType::kF32, {rows, width});

          RmsNorm(context.get(), got.view, x.view, weight.view, 1e-5f);

          reference::RmsNorm({}, want.view, x.view, weight.view, 1e-5f);
          EXPECT_TRUE(Near(got.values(), want.values(), For(out))) << rows << " x " << width;
        }
      }
    }
  }
}

TEST(RmsNormTest, WorksInPlaceOnColumns) {
  Context context(2);
  for (const DType type : kTypes) {
    Tensor x = Random(4, type, {5, 100}, 1);
    const std::vector<float> before = x.values();
    const Tensor weight = Random(5, DType::kF32, {64}, 1);
    Tensor want(DType::kF32, {5, 64});
    reference::RmsNorm({}, want.view, x.view.columns(20, 64), weight.view, 1e-6f);

    RmsNorm(context.get(), x.view.columns(20, 64), x.view.columns(20, 64), weight.view, 1e-6f);

    std::vector<float> inside;
    for (int64_t i = 0; i < 500; ++i) {
      if (i % 100 >= 20 && i % 100 < 84) {
        inside.push_back(x.at(i));
      } else {
        EXPECT_EQ(x.at(i), before[i]);
      }
    }
    EXPECT_TRUE(Near(inside, want.values(), For(type)));
  }
}

TEST(AddRmsNormTest, AgreesWithTheReference) {
  Context context(2);
  for (const DType type : kTypes) {
    for (const int64_t rows : kRowCounts) {
      Tensor sum = Random(6, DType::kF32, {rows, 2048}, 1);
      Tensor want_sum = Random(6, DType::kF32, {rows, 2048}, 1);
      const Tensor delta = Random(7, DType::kF32, {rows, 2048}, 1);
      const Tensor weight = Random(8, DType::kF32, {2048}, 1);
      Tensor got(type, {rows, 2048});
      Tensor want(DType::kF32, {rows, 2048});

      AddRmsNorm(context.get(), got.view, sum.view, delta.view, weight.view, 1e-5f);

      reference::AddRmsNorm({}, want.view, want_sum.view, delta.view, weight.view, 1e-5f);
      EXPECT_EQ(sum.values(), want_sum.values());
      EXPECT_TRUE(Near(got.values(), want.values(), For(type)));
    }
  }
}

TEST(RmsNormTest, ARowDoesNotDependOnItsCompanyOrOnThreads) {
  for (const DType type : kTypes) {
    const Tensor x = Random(9, type, {37, 2048}, 1);
    const Tensor weight = Random(10, DType::kF32, {2048}, 1);
    Context many(3);
    Tensor whole(type, {37, 2048});
    RmsNorm(many.get(), whole.view, x.view, weight.view, 1e-5f);
    for (int64_t t = 0; t < 37; ++t) {
      Tensor alone(type, {1, 2048});

      RmsNorm({}, alone.view, x.view.rows(t, 1), weight.view, 1e-5f);

      ExpectRow(whole, t, alone);
    }
  }
}

struct Rotation {
  Tensor cos = Random(11, DType::kF32, {100, 32}, 1);
  Tensor sin = Random(12, DType::kF32, {100, 32}, 1);
  RopeTable table{
      .cos = cos.view.as<float>(), .sin = sin.view.as<float>(), .positions = 100, .dim = 64};
};

TEST(RopeTest, AgreesWithTheReferenceOnTheLastColumnsOfEachHead) {
  Context context(2);
  const Rotation rotation;
  for (const DType type : kTypes) {
    for (const int64_t rows : kRowCounts) {
      Tensor got = Random(13, type, {rows, 16, 192}, 1);
      Tensor want = Random(13, DType::kF32, {rows, 16, 192}, 1);
      Tensor positions(DType::kI32, {rows});
      for (int64_t t = 0; t < rows; ++t) {
        positions.view.as<int32_t>()[t] = static_cast<int32_t>(99 - 2 * t);
      }

      Rope(context.get(), got.view.columns(128, 64), positions.view, rotation.table);

      reference::Rope({}, want.view.columns(128, 64), positions.view, rotation.table);
      EXPECT_TRUE(Near(got.values(), want.values(), For(type))) << rows;
    }
  }
}

TEST(RopeTest, TurnsPairsOfNeighbours) {
  const float cos[] = {0, 1};
  const float sin[] = {1, 0};
  Tensor x(DType::kF32, {1, 1, 4});
  for (int64_t i = 0; i < 4; ++i) x.set(i, static_cast<float>(i + 1));

  Rope({}, x.view, Ids({0}).view, {.cos = cos, .sin = sin, .positions = 1, .dim = 4});

  EXPECT_EQ(x.values(), (std::vector<float>{-2, 1, 3, 4}));  // a quarter turn, then none
}

TEST(KvWriteTest, WritesLatentThenKeyAtEachSlotAndNothingElse) {
  Context context(2);
  for (const DType type : kTypes) {
    const Tensor both = Random(14, type, {3, 700}, 1);
    Tensor cache(type, {2, 64, 576});
    const KvLayerView view{cache.view.data, type, 2, 576};
    Tensor slots(DType::kI64, {3});
    const int64_t chosen[] = {127, 0, 70};
    std::copy(chosen, chosen + 3, slots.view.as<int64_t>());

    KvWrite(context.get(), view, both.view.columns(100, 512), both.view.columns(636, 64),
            slots.view);

    std::vector<float> want(2 * 64 * 576, 0.0f);
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t d = 0; d < 512; ++d) want[chosen[t] * 576 + d] = both.at(t * 700 + 100 + d);
      for (int64_t d = 0; d < 64; ++d) want[chosen[t] * 576 + 512 + d] = both.at(t * 700 + 636 + d);
    }
    EXPECT_EQ(cache.values(), want);
  }
}

}  // namespace
}  // namespace baltoro::cpu
