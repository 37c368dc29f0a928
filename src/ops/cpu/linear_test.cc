#include <gtest/gtest.h>

#include <cstring>

#include "ops/cpu/test_tensors.h"
#include "support/support.h"

namespace baltoro::cpu::test {
namespace {

using baltoro::test::Near;

struct Shape {
  int64_t rows, n, k;
};
constexpr Shape kShapes[] = {
    {1, 1, 1},       {1, 32, 32},     {3, 17, 5},     {2, 33, 64},    {16, 64, 96},
    {17, 100, 130},  {31, 160, 2048}, {33, 48, 544},  {64, 40, 1056}, {70, 200, 600},
    {129, 256, 576}, {300, 72, 160},  {1, 2112, 576}, {2, 64, 7168},  {40, 40, 2304},
};

std::string Name(const Shape& s, Isa isa) {
  return std::string(NameOf(isa)) + " T=" + std::to_string(s.rows) + " n=" + std::to_string(s.n) +
         " k=" + std::to_string(s.k);
}

// Every pair of activation and stored type, on every instruction set of this machine.
TEST(LinearTest, AgreesWithTheReference) {
  Context context(3);
  for (const Shape& s : kShapes) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.k));
    for (const DType act : {DType::kBf16, DType::kF32}) {
      const Tensor x = Random(1, act, {s.rows, s.k}, 1);
      for (const DType stored : {DType::kBf16, DType::kF32}) {
        const Weights w(2, stored, 1, s.n, s.k, scale);
        Tensor want(DType::kF32, {s.rows, s.n});
        reference::Linear({}, want.view, x.view, w.reference);
        for (const Isa isa : SupportedIsas()) {
          ASSERT_TRUE(ForceIsa(isa).ok());
          Tensor got(DType::kF32, {s.rows, s.n});
          context.scratch.Reset();

          Linear(context.get(), got.view, x.view, w.packed);

          ASSERT_TRUE(Near(got.values(), want.values(), baltoro::test::kF32)) << Name(s, isa);
        }
      }
    }
  }
}

TEST(LinearTest, RowsMayBeStridedAndResultsRounded) {
  Context context(2);
  const Weights w(3, DType::kBf16, 1, 80, 64, 0.125f);
  Tensor wide_x = Random(4, DType::kBf16, {9, 100}, 1);
  TensorView x = wide_x.view.columns(7, 64);
  Tensor want(DType::kBf16, {9, 80});
  reference::Linear({}, want.view, x, w.reference);
  for (const Isa isa : SupportedIsas()) {
    ASSERT_TRUE(ForceIsa(isa).ok());
    Tensor wide(DType::kBf16, {9, 99});
    for (int64_t i = 0; i < 9 * 99; ++i) wide.set(i, 77);

    Linear(context.get(), wide.view.columns(11, 80), x, w.packed);

    for (int64_t row = 0; row < 9; ++row) {
      for (int64_t column = 0; column < 99; ++column) {
        const float got = wide.at(row * 99 + column);
        if (column < 11 || column >= 91) {
          ASSERT_EQ(got, 77);  // nothing beside the view is touched
        } else {
          const float expected = want.at(row * 80 + column - 11);
          ASSERT_NEAR(got, expected, 0.01f * std::abs(expected) + 1e-4f);
        }
      }
    }
  }
}

TEST(LinearTest, ARowDoesNotDependOnItsCompanyOrOnThreads) {
  constexpr int64_t kRows = 137;
  constexpr int64_t kDepth = 1184;
  constexpr int64_t kWidth = 96;
  Context one(1);
  Context four(4);
  for (const auto& [act, stored] : kTypes) {
    const Weights w(5, stored, 1, kWidth, kDepth, 0.03f);
    Tensor x = Random(6, act, {kRows, kDepth}, 1);
    for (const Isa isa : SupportedIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      Tensor all(DType::kF32, {kRows, kWidth});
      Linear(four.get(), all.view, x.view, w.packed);
      for (const int64_t count : {1, 2, 7, 16, 33, 64}) {
        for (const int64_t first : {0, 5, 73}) {
          Tensor some(DType::kF32, {count, kWidth});

          Linear(one.get(), some.view, x.view.rows(first, count), w.packed);

          ASSERT_EQ(0, std::memcmp(some.view.data, all.view.row<float>(first),
                                   static_cast<size_t>(count * kWidth) * sizeof(float)))
              << NameOf(isa) << " " << NameOf(act) << " with " << NameOf(stored) << " weights, "
              << count << " rows from " << first;
        }
      }
    }
  }
}

// A row with a NaN spoils itself only.
TEST(LinearTest, ANanStaysInItsRow) {
  Context context(2);
  const Weights w(7, DType::kBf16, 1, 48, 40, 0.1f);
  Tensor x = Random(8, DType::kBf16, {20, 40}, 1);
  x.set(3 * 40 + 11, std::nanf(""));
  for (const Isa isa : SupportedIsas()) {
    ASSERT_TRUE(ForceIsa(isa).ok());
    Tensor out(DType::kBf16, {20, 48});

    Linear(context.get(), out.view, x.view, w.packed);

    for (int64_t i = 0; i < 20 * 48; ++i) ASSERT_EQ(std::isnan(out.at(i)), i / 48 == 3);
  }
}

TEST(LinearTest, NoRowsIsNoWork) {
  Context context(2);
  const Weights w(9, DType::kBf16, 1, 32, 32, 1);
  Tensor x(DType::kBf16, {1, 32});
  Tensor out(DType::kF32, {1, 32});
  out.set(0, 5);

  Linear(context.get(), out.view.rows(0, 0), x.view.rows(0, 0), w.packed);

  EXPECT_EQ(out.at(0), 5);
}

// Filling a matrix range by range, in any order and with any borders, gives the same bytes.
TEST(PackTest, RangesMakeTheWhole) {
  constexpr int64_t kRows = 83;
  constexpr int64_t kDepth = 70;
  const Tensor rows = Random(10, DType::kBf16, {kRows, kDepth}, 1);
  for (const WeightForm stored : {WeightForm::kBf16, WeightForm::kF32}) {
    const auto bytes = static_cast<size_t>(PackedBytes(stored, kRows, kDepth));
    std::vector<char> whole(bytes, 0x55);
    PackRows(stored, whole.data(), kRows, kDepth, 0, RowsOf(rows.view));
    std::vector<char> parts(bytes, 0x33);

    for (const auto& [begin, end] : {std::pair{48, 83}, {0, 32}, {32, 37}, {37, 48}}) {
      PackRows(stored, parts.data(), kRows, kDepth, begin,
               RowsOf(rows.view.rows(begin, end - begin)));
    }

    EXPECT_EQ(whole, parts);
  }
}

TEST(SwigluTest, AgreesWithTheReferenceEvenFarOut) {
  Context context(3);
  for (const DType type : {DType::kBf16, DType::kF32}) {
    for (const auto& [rows, inter] : {std::pair<int64_t, int64_t>{1, 1}, {5, 37}, {40, 1408}}) {
      Tensor x = Random(11, type, {rows, 2 * inter}, 3);
      x.set(0, -120);
      Tensor want(DType::kF32, {rows, inter});
      reference::Swiglu({}, want.view, x.view);
      for (const Isa isa : SupportedIsas()) {
        ASSERT_TRUE(ForceIsa(isa).ok());
        Tensor got(DType::kF32, {rows, inter});

        Swiglu(context.get(), got.view, x.view);

        for (int64_t i = 0; i < rows * inter; ++i) {
          ASSERT_NEAR(got.at(i), want.at(i), 1e-6f * std::abs(want.at(i)) + 1e-30f) << NameOf(isa);
        }
      }
    }
  }
}

}  // namespace
}  // namespace baltoro::cpu::test
