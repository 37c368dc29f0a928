#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "ops/cpu/kernels.h"
#include "ops/cpu/test_codes.h"
#include "ops/cpu/weight_product.h"
#include "support/support.h"

namespace baltoro::cpu::test {
namespace {

using baltoro::test::Near;

struct Shape {
  int64_t rows, n, k;
};
constexpr Shape kShapes[] = {
    {1, 1, 8},      {1, 32, 32},    {3, 17, 40},   {2, 33, 64},    {16, 64, 96},
    {17, 100, 136}, {31, 47, 512},  {33, 48, 544}, {64, 40, 1056}, {70, 75, 600},
    {129, 64, 72},  {1, 300, 1408}, {5, 31, 2048}, {300, 40, 160}, {2, 64, 7168},
};

// The form, and whether its inputs are rounded to it (kFp8Block alone has the choice).
std::vector<std::pair<WeightForm, bool>> Kinds() {
  std::vector<std::pair<WeightForm, bool>> kinds = {{WeightForm::kFp8Block, true}};
  for (const WeightForm form : kCodedForms) kinds.emplace_back(form, false);
  return kinds;
}

std::string Name(WeightForm form, Isa isa, const Shape& s) {
  return std::string(WeightFormName(form)) + " " + std::string(NameOf(isa)) +
         " T=" + std::to_string(s.rows) + " n=" + std::to_string(s.n) + " k=" + std::to_string(s.k);
}

TEST(CodedWeightsTest, ProductsAgreeWithTheReference) {
  Context context(3);
  for (const auto& [form, quantised] : Kinds()) {
    for (const Shape& s : kShapes) {
      CodedWeights w(2, form, 1, s.n, s.k);
      w.packed.quantise_input = w.reference.quantise_input = quantised;
      for (const DType act : {DType::kBf16, DType::kF32}) {
        const Tensor x = Random(1, act, {s.rows, s.k}, 1);
        Tensor want(DType::kF32, {s.rows, s.n});
        reference::Linear({}, want.view, x.view, w.reference);
        for (const Isa isa : SupportedIsas()) {
          ASSERT_TRUE(ForceIsa(isa).ok());
          Tensor got(DType::kF32, {s.rows, s.n});
          context.scratch.Reset();

          Linear(context.get(), got.view, x.view, w.packed);

          ASSERT_TRUE(Near(got.values(), want.values(), baltoro::test::kF32)) << Name(form, isa, s);
        }
      }
    }
  }
}

TEST(CodedWeightsTest, RowsMayBeStridedAndResultsRounded) {
  Context context(2);
  Tensor wide_x = Random(4, DType::kBf16, {9, 100}, 1);
  const TensorView x = wide_x.view.columns(7, 64);
  for (const auto& [form, quantised] : Kinds()) {
    CodedWeights w(3, form, 1, 80, 64);
    w.packed.quantise_input = w.reference.quantise_input = quantised;
    Tensor want(DType::kF32, {9, 80});
    reference::Linear({}, want.view, x, w.reference);
    for (const Isa isa : SupportedIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      Tensor wide(DType::kBf16, {9, 99});
      for (int64_t i = 0; i < 9 * 99; ++i) wide.set(i, 77);

      Linear(context.get(), wide.view.columns(11, 80), x, w.packed);

      for (int64_t i = 0; i < 9 * 99; ++i) {
        const int64_t column = i % 99 - 11;
        if (column < 0 || column >= 80) {
          ASSERT_EQ(wide.at(i), 77);  // nothing beside the view is touched
        } else {
          const float expected = want.at(i / 99 * 80 + column);
          ASSERT_NEAR(wide.at(i), expected, 0.005f * std::abs(expected) + 1e-5f);
        }
      }
    }
  }
}

TEST(CodedWeightsTest, ARowDoesNotDependOnItsCompanyOrOnThreads) {
  constexpr int64_t kRows = 70;
  constexpr int64_t kDepth = 1184;
  constexpr int64_t kWidth = 72;
  Context one(1);
  Context four(4);
  for (const auto& [form, quantised] : Kinds()) {
    CodedWeights w(5, form, 1, kWidth, kDepth);
    w.packed.quantise_input = quantised;
    for (const DType act : {DType::kBf16, DType::kF32}) {
      const Tensor x = Random(6, act, {kRows, kDepth}, 1);
      for (const Isa isa : SupportedIsas()) {
        ASSERT_TRUE(ForceIsa(isa).ok());
        Tensor all(DType::kF32, {kRows, kWidth});
        Linear(four.get(), all.view, x.view, w.packed);
        for (const int64_t count : {1, 2, 15, 16, 17, 32, 33, 64}) {
          Tensor some(DType::kF32, {count, kWidth});

          Linear(one.get(), some.view, x.view.rows(5, count), w.packed);

          ASSERT_EQ(0, std::memcmp(some.view.data, all.view.row<float>(5),
                                   static_cast<size_t>(count * kWidth) * sizeof(float)))
              << Name(form, isa, {count, kWidth, kDepth});
        }
      }
    }
  }
}

TEST(CodedWeightsTest, ANanStaysInItsRow) {
  Context context(2);
  Tensor x = Random(8, DType::kBf16, {20, 40}, 1);
  x.set(3 * 40 + 11, std::nanf(""));
  for (const auto& [form, quantised] : Kinds()) {
    CodedWeights w(7, form, 1, 48, 40);
    w.packed.quantise_input = quantised;
    for (const Isa isa : SupportedIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      Tensor out(DType::kBf16, {20, 48});

      Linear(context.get(), out.view, x.view, w.packed);

      for (int64_t i = 0; i < 20 * 48; ++i) {
        ASSERT_EQ(std::isnan(out.at(i)), i / 48 == 3) << Name(form, isa, {20, 48, 40});
      }
    }
  }
}

TEST(CodedWeightsTest, ARowOfZerosGivesZeros) {
  Context context(1);
  const Tensor x(DType::kBf16, {1, 64});
  for (const auto& [form, quantised] : Kinds()) {
    if (form == WeightForm::kInt8Static) continue;  // has biases
    CodedWeights w(9, form, 1, 32, 64);
    w.packed.quantise_input = quantised;
    for (const Isa isa : SupportedIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      Tensor out = Random(1, DType::kF32, {1, 32}, 1);

      Linear(context.get(), out.view, x.view, w.packed);

      for (int64_t i = 0; i < 32; ++i) ASSERT_EQ(out.at(i), 0) << Name(form, isa, {1, 32, 64});
    }
  }
}

// Each code of e4m3, subnormal ones and the two NaNs included, through a product with 1.
TEST(CodedWeightsTest, EveryFp8CodeIsExact) {
  Context context(1);
  std::vector<uint8_t> codes(256 * 8, 0);
  for (int64_t i = 0; i < 256; ++i) codes[i * 8 + i % 8] = static_cast<uint8_t>(i);
  const float scales[] = {1, 1};
  Buffer memory =
      Buffer::Create(static_cast<size_t>(PackedBytes(WeightForm::kFp8Block, 256, 8)), "t").value();
  PackRows(WeightForm::kFp8Block, memory.data(), 256, 8, 0,
           {.form = WeightForm::kFp8Block,
            .rows = 256,
            .k = 8,
            .values = codes.data(),
            .scales = scales});
  const PackedMatrix w = {.data = memory.data(), .form = WeightForm::kFp8Block, .n = 256, .k = 8};
  Tensor x(DType::kBf16, {1, 8});
  for (int64_t i = 0; i < 8; ++i) x.set(i, 1);
  for (const Isa isa : SupportedIsas()) {
    ASSERT_TRUE(ForceIsa(isa).ok());
    Tensor out(DType::kF32, {1, 256});

    Linear(context.get(), out.view, x.view, w);

    for (int64_t i = 0; i < 256; ++i) {
      const float want = FromE4M3(static_cast<uint8_t>(i));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(out.at(i))) << i;
      } else {
        EXPECT_EQ(out.at(i), want) << i << " " << NameOf(isa);
      }
    }
  }
}

// A NaN among the weights is in one output alone, whichever group it lies in and however many rows
// there are.
TEST(CodedWeightsTest, ANanOfAWeightStaysInItsColumn) {
  constexpr int64_t kWidth = 40;
  constexpr int64_t kDepth = 300;
  Context context(2);
  for (const int64_t at : {5, 130, 299}) {
    std::vector<uint8_t> codes(kWidth * kDepth, 0x38);
    codes[static_cast<size_t>(17 * kDepth + at)] = 0xFF;
    const std::vector<float> scales(3, 1.0f);
    const auto bytes = static_cast<size_t>(PackedBytes(WeightForm::kFp8Block, kWidth, kDepth));
    const Buffer memory = Buffer::Create(bytes, "test").value();
    PackRows(WeightForm::kFp8Block, memory.data(), kWidth, kDepth, 0,
             {.form = WeightForm::kFp8Block,
              .rows = kWidth,
              .k = kDepth,
              .values = codes.data(),
              .scales = scales.data()});
    const PackedMatrix w = {
        .data = memory.data(), .form = WeightForm::kFp8Block, .n = kWidth, .k = kDepth};
    for (const Isa isa : SupportedIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      for (const int64_t rows : {1, 3, 20}) {
        const Tensor x = Random(12, DType::kBf16, {rows, kDepth}, 1);
        Tensor out(DType::kF32, {rows, kWidth});
        context.scratch.Reset();

        Linear(context.get(), out.view, x.view, w);

        for (int64_t i = 0; i < rows * kWidth; ++i) {
          ASSERT_EQ(std::isnan(out.at(i)), i % kWidth == 17)
              << NameOf(isa) << " " << rows << " " << at;
        }
      }
    }
  }
}

// Over every exponent and all upper bits of the mantissa, so that ties and both ends are met.
TEST(CodedWeightsTest, InputsAreRoundedToFp8AsTheCodecDoes) {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x8000; ++bits) {
    for (const uint32_t low : {0u, 1u, 0x8000u}) {
      x.push_back(std::bit_cast<float>(bits << 16 | low));
      x.push_back(-x.back());
    }
  }
  for (const Isa isa : SupportedIsas()) {
    ASSERT_TRUE(ForceIsa(isa).ok());
    std::vector<float> got = x;

    KernelsFor(DType::kF32, DType::kBf16).round_to_e4m3(got.data(), std::ssize(got), 1);

    for (size_t i = 0; i < x.size(); ++i) {
      const float want = FromE4M3(ToE4M3(x[i]));
      ASSERT_TRUE(got[i] == want || (std::isnan(got[i]) && std::isnan(want))) << x[i];
    }
  }
}

// Filling a matrix range by range, in any order, gives the same bytes; so does a second source in
// rows that follow the first within a panel.
TEST(CodedWeightsTest, RangesMakeTheWhole) {
  constexpr int64_t kRows = 150;
  constexpr int64_t kDepth = 200;
  for (const WeightForm form : kCodedForms) {
    const CodedRows rows(10, form, kRows, kDepth);
    const auto bytes = static_cast<size_t>(PackedBytes(form, kRows, kDepth));
    std::vector<char> whole(bytes, 0x55);
    PackRows(form, whole.data(), kRows, kDepth, 0, rows.stored());
    std::vector<char> parts(bytes, 0x33);
    std::vector<std::pair<int64_t, int64_t>> ranges = {{128, 150}, {0, 128}};
    if (form != WeightForm::kFp8Block) ranges = {{64, 150}, {0, 32}, {32, 38}, {38, 64}};

    for (const auto& [begin, end] : ranges) {
      PackRows(form, parts.data(), kRows, kDepth, begin, rows.Range(begin, end - begin));
    }

    EXPECT_EQ(whole, parts) << WeightFormName(form);
  }
}

TEST(CodedWeightsTest, SumsThatMightNotFitAreRefused) {
  const auto product = [](int64_t k) {
    return WeightProduct(DType::kF32, {.form = WeightForm::kInt8, .n = 32, .k = k});
  };
  product((1 << 17) - 1);
  EXPECT_DEATH(product(1 << 17), "check failed: w.k < kIntDepthEnd");
}

TEST(CodedWeightsTest, TwoSourcesShareAPanel) {
  constexpr int64_t kDepth = 136;
  Context context(1);
  const Tensor x = Random(11, DType::kF32, {2, kDepth}, 1);
  ASSERT_TRUE(ForceIsa(Isa::kAvx2).ok());
  for (const WeightForm form : kCodedForms) {
    const CodedRows first(12, form, 22, kDepth);
    const CodedRows second(13, form, 20, kDepth);
    Buffer memory =
        Buffer::Create(static_cast<size_t>(PackedBytes(form, 42, kDepth)), "test").value();
    PackRows(form, memory.data(), 42, kDepth, 0, first.stored());
    PackRows(form, memory.data(), 42, kDepth, 22, second.stored());
    Buffer apart =
        Buffer::Create(static_cast<size_t>(ReferenceOps().packed_bytes(form, 42, kDepth)), "test")
            .value();
    ReferenceOps().pack_rows(form, apart.data(), 42, kDepth, 0, first.stored());
    ReferenceOps().pack_rows(form, apart.data(), 42, kDepth, 22, second.stored());
    PackedMatrix w = {.data = memory.data(), .form = form, .n = 42, .k = kDepth};
    Tensor got(DType::kF32, {2, 42});
    Tensor want(DType::kF32, {2, 42});

    Linear(context.get(), got.view, x.view, w);

    w.data = apart.data();
    reference::Linear({}, want.view, x.view, w);
    EXPECT_TRUE(Near(got.values(), want.values(), baltoro::test::kF32)) << WeightFormName(form);
  }
}

// A bank of experts, whose middles are rounded like inputs where the form rounds them.
struct Bank {
  static constexpr int64_t kExperts = 5, kTopK = 3;
  CodedWeights gate_up, down;
  Tensor x, weights, ids;
  std::vector<int32_t> slot_of = {3, -1, 0, 2, 1};

  Bank(WeightForm up_form,
       WeightForm down_form,
       bool quantised,
       DType act,
       int64_t tokens,
       int64_t hidden,
       int64_t inter)
      : gate_up(20, up_form, kExperts - 1, 2 * inter, hidden),
        down(30, down_form, kExperts - 1, hidden, inter),
        x(Random(3, act, {tokens, hidden}, 1)),
        weights(Random(4, DType::kF32, {tokens, kTopK}, 1)),
        ids(DType::kI32, {tokens, kTopK}) {
    for (CodedWeights* w : {&gate_up, &down}) {
      w->packed.quantise_input = w->reference.quantise_input = quantised;
    }
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < kTopK; ++j) {
        ids.view.row<int32_t>(t)[j] = static_cast<int32_t>((t * 7 + j * (1 + t % 2)) % kExperts);
      }
    }
  }
  ExpertBankArgs Args(TensorView out, int64_t first, bool packed) const {
    const int64_t count = out.dim(0);
    return {.out = out,
            .x = x.view.rows(first, count),
            .ids = ids.view.rows(first, count),
            .weights = weights.view.rows(first, count),
            .gate_up = packed ? gate_up.packed : gate_up.reference,
            .down = packed ? down.packed : down.reference,
            .slot_of = slot_of};
  }
};

TEST(CodedWeightsTest, ABankOfExpertsAgreesWithTheReference) {
  Context context(3);
  for (const auto& [form, quantised] : Kinds()) {
    // W4A8 checkpoints may keep single matrices in 8 bits.
    const WeightForm down_form = form == WeightForm::kInt4 ? WeightForm::kInt8 : form;
    for (const auto& [tokens, hidden, inter] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 96, 48}, {40, 104, 40}, {300, 64, 32}}) {
      for (const DType act : {DType::kBf16, DType::kF32}) {
        const Bank bank(form, down_form, quantised, act, tokens, hidden, inter);
        Tensor want = Random(6, DType::kF32, {tokens, hidden}, 1);
        reference::ExpertBank({}, bank.Args(want.view, 0, false));
        for (const Isa isa : SupportedIsas()) {
          ASSERT_TRUE(ForceIsa(isa).ok());
          Tensor got = Random(6, DType::kF32, {tokens, hidden}, 1);
          context.scratch.Reset();

          ExpertBank(context.get(), bank.Args(got.view, 0, true));

          // The middle may fall on the other side of a rounding border than the reference's.
          ASSERT_TRUE(Near(got.values(), want.values(), baltoro::test::kBf16))
              << Name(form, isa, {tokens, hidden, inter});
        }
      }
    }
  }
}

TEST(CodedWeightsTest, ATokenOfABankDoesNotDependOnItsCompanyOrOnThreads) {
  constexpr int64_t kTokens = 90;
  constexpr int64_t kHidden = 160;
  Context one(1);
  Context four(4);
  for (const auto& [form, quantised] : Kinds()) {
    for (const DType act : {DType::kBf16, DType::kF32}) {
      const Bank bank(form, form, quantised, act, kTokens, kHidden, 96);
      for (const Isa isa : SupportedIsas()) {
        const ForcedIsa forced(isa);
        Tensor all(DType::kF32, {kTokens, kHidden});
        ExpertBank(four.get(), bank.Args(all.view, 0, true));
        for (const int64_t count : {1, 2, 17, 40}) {
          Tensor some(DType::kF32, {count, kHidden});

          ExpertBank(one.get(), bank.Args(some.view, 31, true));

          ASSERT_EQ(0, std::memcmp(some.view.data, all.view.row<float>(31),
                                   static_cast<size_t>(count * kHidden) * sizeof(float)))
              << Name(form, isa, {count, kHidden, 96}) << " " << NameOf(act);
        }
      }
    }
  }
}

}  // namespace
}  // namespace baltoro::cpu::test
