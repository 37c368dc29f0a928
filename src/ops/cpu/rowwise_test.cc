// Embedding, norms, rotary embedding and the cache write, held to the reference.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ops/cpu/kv_rows.h"
#include "ops/cpu/test_tensors.h"
#include "support/support.h"
#include "tensor/float8.h"

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
    const Tensor ids = Ids({9, 0, -1, 3, 10});
    Tensor got(DType::kF32, {5, 37});
    Tensor want(DType::kF32, {5, 37});

    Embed(context.get(), got.view, table.view, ids.view, 0);

    reference::Embed({}, want.view, table.view, ids.view, 0);
    EXPECT_EQ(got.values(), want.values());
    EXPECT_EQ(got.at(0), table.at(9 * 37));
    EXPECT_EQ(got.at(2 * 37), 0);
    EXPECT_EQ(got.at(4 * 37), 0);
  }
}

// Each rank has some rows of the vocabulary, and names tokens as all do.
TEST(EmbedTest, PartsOfTheTableAddUpToTheWhole) {
  Context context(2);
  const Tensor table = Random(1, DType::kBf16, {10, 37}, 1);
  const Tensor ids = Ids({9, 0, -1, 3, 4, 10});
  Tensor want(DType::kF32, {6, 37});
  reference::Embed({}, want.view, table.view, ids.view, 0);
  std::vector<float> sum(want.values().size());
  for (const auto& [first, rows] : {std::pair{0, 4}, std::pair{4, 3}, std::pair{7, 3}}) {
    Tensor got(DType::kF32, {6, 37});
    Tensor expected(DType::kF32, {6, 37});
    Embed(context.get(), got.view, table.view.rows(first, rows), ids.view, first);
    reference::Embed({}, expected.view, table.view.rows(first, rows), ids.view, first);
    EXPECT_EQ(got.values(), expected.values());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += got.at(static_cast<int64_t>(i));
  }
  EXPECT_EQ(sum, want.values());
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
    const KvLayerView view{.data = cache.view.data,
                           .form = PlainKvForm(type),
                           .num_blocks = 2,
                           .latent = 512,
                           .rope = 64};
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

// Everything that a form must keep apart, in one row: large and small values, a zero, both signs.
Tensor HardValues(DType type, int64_t rows, int64_t width) {
  Tensor values = Random(15, type, {rows, width}, 1);
  for (int64_t i = 0; i < rows * width; i += 7) values.set(i, values.at(i) * 1e-3f);
  for (int64_t i = 0; i < rows * width; i += 11) values.set(i, values.at(i) * 300);
  for (int64_t i = 0; i < rows * width; i += 13) values.set(i, 0);
  for (int64_t i = 0; i < rows * width; i += 97) values.set(i, i % 2 == 0 ? 3e38f : -3e38f);
  return values;
}

TEST(KvWriteTest, EveryFormIsWrittenAsTheReferenceWritesIt) {
  Context context(2);
  for (const auto& [latent, rope] : {std::pair<int64_t, int64_t>{512, 64}, {40, 8}, {129, 6}}) {
    for (const DType type : kTypes) {
      for (const KvForm form : {KvForm::kBf16, KvForm::kFp8, KvForm::kFp8Groups}) {
        const Tensor values = HardValues(type, 5, latent + rope);
        KvLayerView view{
            .form = form, .num_blocks = 1, .latent = latent, .rope = rope, .scale = 0.37f};
        const auto bytes = static_cast<size_t>(64 * view.token_bytes());
        std::vector<char> got(bytes, 1), want(bytes, 1);
        Tensor slots(DType::kI64, {5});
        const int64_t chosen[] = {63, 0, 7, 8, 9};
        std::copy(chosen, chosen + 5, slots.view.as<int64_t>());
        const auto write = [&](auto operation, std::vector<char>& memory) {
          view.data = memory.data();
          operation(context.get(), view, values.view.columns(0, latent),
                    values.view.columns(latent, rope), slots.view);
        };

        write(KvWrite, got);
        write(reference::KvWrite, want);

        EXPECT_EQ(got, want) << NameOf(type) << " " << KvFormName(form) << " " << latent;
      }
    }
  }
}

// Against the definition of the layout, byte by byte: a group of the latent whose largest magnitude
// is 896 has the scale 2.
TEST(KvWriteTest, TheLayoutOf656BytesIsTheDocumentedOne) {
  Tensor values(DType::kF32, {1, 576});
  values.set(0, 896);
  values.set(1, -5);
  values.set(128, 448);
  values.set(129, 0.3f);
  values.set(512, 1.5f);
  values.set(575, -3e38f);
  std::vector<uint8_t> memory(64 * 656);
  const KvLayerView view{.data = memory.data(),
                         .form = KvForm::kFp8Groups,
                         .num_blocks = 1,
                         .latent = 512,
                         .rope = 64};
  ASSERT_EQ(view.token_bytes(), 656);
  Tensor slots(DType::kI64, {1});
  *slots.view.as<int64_t>() = 2;

  KvWrite({}, view, values.view.columns(0, 512), values.view.columns(512, 64), slots.view);

  const uint8_t* token = memory.data() + 2 * 656;
  EXPECT_EQ(token[0], 0x7E);    // 448
  EXPECT_EQ(token[1], 0xC2);    // -2.5
  EXPECT_EQ(token[128], 0x7E);  // 448
  EXPECT_EQ(token[129], 0x2A);  // 0.3125
  float scales[4];
  std::memcpy(scales, token + 512, sizeof(scales));
  EXPECT_EQ(scales[0], 2);
  EXPECT_EQ(scales[1], 1);
  EXPECT_EQ(scales[2], std::numeric_limits<float>::min());
  EXPECT_EQ(token[528] | token[529] << 8, 0x3FC0);  // bf16 of 1.5
  EXPECT_EQ(token[654] | token[655] << 8, ToBf16(-3e38f).bits);
}

TEST(KvWriteTest, WhatIsTooLargeForAnEightBitFloatBecomesTheLargest) {
  Tensor values(DType::kF32, {1, 576});
  const float infinity = std::numeric_limits<float>::infinity();
  const float given[] = {1e30f, -infinity, 448 * 2, 465 * 2, std::nanf("")};
  for (int64_t i = 0; i < 5; ++i) values.set(i, given[i]);
  std::vector<uint8_t> memory(64 * 576);
  const KvLayerView view{.data = memory.data(),
                         .form = KvForm::kFp8,
                         .num_blocks = 1,
                         .latent = 512,
                         .rope = 64,
                         .scale = 2};
  Tensor slots(DType::kI64, {1});
  *slots.view.as<int64_t>() = 0;

  KvWrite({}, view, values.view.columns(0, 512), values.view.columns(512, 64), slots.view);

  EXPECT_EQ(std::vector<uint8_t>(memory.begin(), memory.begin() + 5),
            (std::vector<uint8_t>{0x7E, 0xFE, 0x7E, 0x7E, 0x7F}));
}

// All codes in every group, rows apart in both memories, one row of a length that is no multiple.
TEST(KvRowsTest, EveryGroupIsWidenedWithItsScale) {
  for (const int64_t latent : {512, 140}) {
    const int64_t groups = KvGroups(latent), token_bytes = latent + 4 * groups + 6;
    std::vector<uint8_t> tokens(static_cast<size_t>(3 * token_bytes));
    const float scales[] = {1, 0.0123f, 3e-6f, 1024.5f};
    for (int64_t t = 0; t < 3; ++t) {
      uint8_t* token = tokens.data() + t * token_bytes;
      for (int64_t i = 0; i < latent; ++i) token[i] = static_cast<uint8_t>(i * 37 + t * 91);
      std::memcpy(token + latent, scales, static_cast<size_t>(groups) * sizeof(float));
    }
    const GroupedRows rows = {tokens.data(), token_bytes, 3, latent};
    std::vector<float> wide(static_cast<size_t>(3 * (latent + 5)));
    WidenGroups(wide.data(), latent + 5, rows);
    for (const Isa isa : test::SupportedIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      std::vector<Bf16> narrow(wide.size());
      WidenGroups(narrow.data(), latent + 5, rows);
      for (int64_t i = 0; i < 3 * latent; ++i) {
        const int64_t t = i / latent, d = i % latent, at = t * (latent + 5) + d;
        const float want = FromE4M3(tokens[t * token_bytes + d]) * scales[d / 128];
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(wide[at]) && std::isnan(ToFloat(narrow[at])));
          continue;
        }
        ASSERT_EQ(wide[at], want);
        ASSERT_EQ(narrow[at].bits, ToBf16(want).bits) << NameOf(isa) << " " << t << " " << d;
      }
    }
  }
}

// All codes, at lengths that end inside a vector, by every way there is.
TEST(KvRowsTest, EveryCodeIsWidenedExactly) {
  for (const int64_t count : {1, 31, 256, 300, 1000}) {
    std::vector<uint8_t> codes(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(i * 37);
    for (const float scale : {1.0f, 0.0123f, 3e-6f, 1024.5f}) {
      std::vector<float> wide(codes.size());
      WidenE4M3(wide.data(), codes.data(), scale, count);
      for (const Isa isa : test::SupportedIsas()) {
        ASSERT_TRUE(ForceIsa(isa).ok());
        std::vector<Bf16> narrow(codes.size());
        WidenE4M3(narrow.data(), codes.data(), scale, count);
        for (int64_t i = 0; i < count; ++i) {
          const float want = FromE4M3(codes[i]) * scale;
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(wide[i]) && std::isnan(ToFloat(narrow[i])));
            continue;
          }
          ASSERT_EQ(wide[i], want) << int{codes[i]};
          ASSERT_EQ(narrow[i].bits, ToBf16(want).bits)
              << int{codes[i]} << " times " << scale << " on " << NameOf(isa);
        }
      }
    }
  }
}

}  // namespace
}  // namespace baltoro::cpu
