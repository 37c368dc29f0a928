#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>

#include "ops/cpu/test_tensors.h"
#include "support/support.h"

namespace baltoro::cpu::test {
namespace {

using baltoro::test::Near;

constexpr int64_t kBlock = KvLayerView::kBlockTokens;

struct Dims {
  int32_t heads, nope, rope, value, latent;
};
constexpr Dims kFamily = {16, 128, 64, 128, 512};
constexpr Dims kRank = {8, 128, 64, 128, 512};
constexpr Dims kTiny = {3, 24, 8, 20, 40};  // nothing is a multiple of 32
constexpr Dims kWide = {40, 32, 32, 32, 64};
constexpr Dims kSmall = {5, 32, 32, 32, 64};

// A cache filled by the reference with one long sequence whose blocks lie in shuffled places; what
// no key owns is NaN, which must never reach a result.
struct Case {
  Case(const Dims& dims, DType act, int64_t key_total)
      : Case(dims, act, key_total, PlainKvForm(act)) {}
  Case(const Dims& dims, DType act, int64_t key_total, KvForm form)
      : Case(dims, act, key_total, form, act) {}
  Case(const Dims& dims, DType act, int64_t key_total, KvForm form, DType stored)
      : d(dims),
        keys(key_total),
        kv_b(1, stored, 1, d.heads * (d.nope + d.value), d.latent, Scale(d.latent)),
        uk_t(2, stored, d.heads, d.latent, d.nope, 1),
        q(Random(3, act, {keys, d.heads, d.nope + d.rope}, 1)),
        cache{.data = nullptr,
              .form = form,
              .num_blocks = Blocks() + 2,
              .latent = d.latent,
              .rope = d.rope,
              .scale = 0.0123f} {
    // The key rows of kv_b, transposed.
    for (int64_t head = 0; head < d.heads; ++head) {
      for (int64_t r = 0; r < d.latent; ++r) {
        for (int64_t n = 0; n < d.nope; ++n) {
          const int64_t row = head * (d.nope + d.value) + n;
          uk_t.rows.set((head * d.latent + r) * d.nope + n, kv_b.rows.at(row * d.latent + r));
        }
      }
      PackRows(PlainForm(stored), const_cast<void*>(uk_t.packed.at(head).data), d.latent, d.nope, 0,
               RowsOf(uk_t.rows.view.rows(head * d.latent, d.latent)));
    }
    const auto bytes = static_cast<size_t>(cache.num_blocks * kBlock * cache.token_bytes());
    cache_memory = Buffer::Create(bytes, "test").value();
    cache.data = cache_memory.data();
    std::memset(cache.data, 0xFF, bytes);  // NaN in every form
    blocks.resize(static_cast<size_t>(Blocks()));
    std::iota(blocks.begin(), blocks.end(), 1);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(4));
    const Tensor values = Random(5, act, {keys, d.latent + d.rope}, 1);
    const Tensor slots(DType::kI64, {keys});
    for (int64_t key = 0; key < keys; ++key) slots.view.as<int64_t>()[key] = Slot(key);
    reference::KvWrite({}, cache, values.view.columns(0, d.latent),
                       values.view.columns(d.latent, d.rope), slots.view);
  }
  static float Scale(int64_t depth) { return 1 / std::sqrt(static_cast<float>(depth)); }
  int64_t Blocks() const { return (keys + kBlock - 1) / kBlock; }
  int64_t Slot(int64_t key) const {
    return blocks[static_cast<size_t>(key / kBlock)] * kBlock + key % kBlock;
  }

  // Queries [first, first + count) of the sequence, whose keys end with them; one call, row 0 of
  // `out` is token `first`.
  AttentionSequence Sequence(int64_t first, int64_t count, int64_t absorbed_from) const {
    return {.query_begin = 0,
            .query_count = static_cast<int32_t>(count),
            .first_position = static_cast<int32_t>(first),
            .absorbed_from = static_cast<int32_t>(absorbed_from),
            .blocks = blocks,
            .block_positions = {},
            .key_count = static_cast<int32_t>(first + count)};
  }
  MlaAttentionArgs Args(TensorView out,
                        TensorView lse,
                        int64_t first,
                        int64_t count,
                        std::span<const AttentionSequence> sequences,
                        bool packed) const {
    return {.out = out,
            .q = q.view.rows(first, count),
            .cache = cache,
            .sequences = sequences,
            .kv_b = packed ? kv_b.packed : kv_b.reference,
            .uk_t = packed ? uk_t.packed : uk_t.reference,
            .scale = Scale(d.nope + d.rope),
            .heads = d.heads,
            .nope = d.nope,
            .rope = d.rope,
            .value = d.value,
            .latent = d.latent,
            .lse = lse};
  }
  void Run(OpContext ctx, Tensor& out, int64_t first, int64_t count, int64_t absorbed_from) const {
    const AttentionSequence sequence = Sequence(first, count, absorbed_from);
    ctx.scratch->Reset();
    MlaAttention(ctx, Args(out.view, {}, first, count, {&sequence, 1}, true));
  }

  Dims d;
  int64_t keys;
  Weights kv_b;
  Weights uk_t;
  Tensor q;
  Buffer cache_memory;
  KvLayerView cache;
  std::vector<int32_t> blocks;
};

struct Span {
  int64_t keys, first, absorbed_from;
};

// What a product can be asked for.
constexpr std::pair<DType, KvForm> kForms[] = {
    {DType::kBf16, KvForm::kBf16},      {DType::kBf16, KvForm::kFp8},
    {DType::kBf16, KvForm::kFp8Groups}, {DType::kF32, KvForm::kF32},
    {DType::kF32, KvForm::kBf16},       {DType::kF32, KvForm::kFp8},
    {DType::kF32, KvForm::kFp8Groups}};

// These with weights of the activations' type, and the other type of weights with a plain cache.
constexpr std::tuple<DType, KvForm, DType> kFormsAndWeights[] = {
    {DType::kBf16, KvForm::kBf16, DType::kBf16},
    {DType::kBf16, KvForm::kFp8, DType::kBf16},
    {DType::kBf16, KvForm::kFp8Groups, DType::kBf16},
    {DType::kBf16, KvForm::kBf16, DType::kF32},
    {DType::kF32, KvForm::kF32, DType::kF32},
    {DType::kF32, KvForm::kBf16, DType::kF32},
    {DType::kF32, KvForm::kFp8, DType::kF32},
    {DType::kF32, KvForm::kFp8Groups, DType::kF32},
    {DType::kF32, KvForm::kF32, DType::kBf16}};

TEST(MlaAttentionTest, BothFormsAgreeWithTheReference) {
  Context context(3);
  for (const Dims& dims : {kTiny, kRank, kWide}) {
    // Keys in all, the first query of the call, where the absorbed form starts.
    std::vector<Span> spans = {{70, 60, 65}, {600, 597, 0}};
    if (dims.latent < 512) {
      spans.insert(spans.end(),
                   {{1, 0, 0}, {1, 0, 1}, {64, 0, 40}, {131, 100, 0}, {131, 90, 1000}});
    }
    for (const Span& span : spans) {
      for (const auto& [act, form] : kForms) {
        // The reference is slow: of the wide shapes the one of several groups of a scale is enough.
        const bool plain = form == PlainKvForm(act);
        const bool groups = act == DType::kBf16 && form == KvForm::kFp8Groups && span.keys < 100;
        if (!plain && dims.latent > 40 && !(groups && dims.latent == 512)) continue;
        const Case c(dims, act, span.keys, form);
        const int64_t count = span.keys - span.first;
        const AttentionSequence sequence = c.Sequence(span.first, count, span.absorbed_from);
        Tensor want(DType::kF32, {count, dims.heads * dims.value});
        Tensor want_lse(DType::kF32, {count, dims.heads});
        reference::MlaAttention(
            {}, c.Args(want.view, want_lse.view, span.first, count, {&sequence, 1}, false));
        for (const Isa isa : SupportedIsas()) {
          ASSERT_TRUE(ForceIsa(isa).ok());
          Tensor got(act, {count, dims.heads * dims.value});
          Tensor lse(DType::kF32, {count, dims.heads});
          context.scratch.Reset();

          MlaAttention(context.get(),
                       c.Args(got.view, lse.view, span.first, count, {&sequence, 1}, true));

          const auto tolerance = act == DType::kF32 ? baltoro::test::kF32 : baltoro::test::kBf16;
          ASSERT_TRUE(Near(got.values(), want.values(), tolerance))
              << NameOf(isa) << " " << NameOf(act) << " " << KvFormName(form) << " heads "
              << dims.heads << " keys " << span.keys << " from " << span.first << " absorbed from "
              << span.absorbed_from;
          ASSERT_TRUE(Near(lse.values(), want_lse.values(), tolerance)) << NameOf(isa);
        }
      }
    }
  }
}

TEST(MlaAttentionTest, CutsOfTheQueriesDoNotShow) {
  constexpr int64_t kKeys = 1100;  // several splits
  Context one(1);
  Context four(4);
  const int64_t width = int64_t{kSmall.heads} * kSmall.value;
  for (const auto& [act, form, stored] : kFormsAndWeights) {
    const Case c(kSmall, act, kKeys, form, stored);
    const bool usual = form == PlainKvForm(act) && stored == act;
    for (const Isa isa : SupportedIsas()) {
      const ForcedIsa forced(isa);
      for (const int64_t absorbed_from : {0, 700, 5000}) {
        if (!usual && absorbed_from != 700) continue;  // 700 is both ways at once
        Tensor all(act, {kKeys, width});
        c.Run(four.get(), all, 0, kKeys, absorbed_from);
        for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1},
                                           {0, 63},
                                           {63, 2},
                                           {500, 13},
                                           {511, 130},
                                           {690, 33},
                                           {1099, 1}}) {
          Tensor some(act, {count, width});

          c.Run(one.get(), some, first, count, absorbed_from);

          ASSERT_EQ(0, std::memcmp(some.view.data,
                                   static_cast<char*>(all.view.data) + first * width * SizeOf(act),
                                   static_cast<size_t>(count * width * SizeOf(act))))
              << NameOf(isa) << " " << NameOf(act) << " with " << NameOf(stored)
              << " weights, cache " << KvFormName(form) << ", tokens " << first << " + " << count
              << ", absorbed from " << absorbed_from;
        }
      }
    }
  }
}

// Several sequences in one call, with both forms, against each alone.
TEST(MlaAttentionTest, ASequenceDoesNotDependOnItsCompany) {
  Context context(3);
  const int64_t width = int64_t{kFamily.heads} * kFamily.value;
  for (const DType act : {DType::kBf16, DType::kF32}) {
    const Case c(kFamily, act, 101);
    // Rows 40..42 decode, row 43 .. 99 prefill, row 100 decodes: all of the same keys.
    std::vector<AttentionSequence> sequences = {c.Sequence(40, 3, 0), c.Sequence(43, 57, 1000),
                                                c.Sequence(100, 1, 0)};
    sequences[1].query_begin = 3;
    sequences[2].query_begin = 60;
    for (const Isa isa : SupportedIsas()) {
      const ForcedIsa forced(isa);
      Tensor together(act, {61, width});
      context.scratch.Reset();
      MlaAttention(context.get(), c.Args(together.view, {}, 40, 61, sequences, true));
      for (const auto& [first, count, from] :
           {std::tuple<int64_t, int64_t, int64_t>{40, 3, 0}, {43, 57, 1000}, {100, 1, 0}}) {
        Tensor alone(act, {count, width});

        c.Run(context.get(), alone, first, count, from);

        ASSERT_EQ(0, std::memcmp(alone.view.data, together.view.rows(first - 40, count).data,
                                 static_cast<size_t>(count * width * SizeOf(act))))
            << NameOf(isa) << " " << NameOf(act) << ", tokens " << first << " + " << count;
      }
    }
  }
}

// Every second block only, positions given; the first query comes before all of them.
TEST(MlaAttentionTest, GivenPositionsDecideWhatIsSeen) {
  Context context(2);
  for (const DType act : {DType::kBf16, DType::kF32}) {
    for (const int64_t absorbed_from : {0, 10000}) {
      const Case c(kTiny, act, 256);
      const std::vector<int32_t> blocks = {c.blocks[1], c.blocks[3]};
      const std::vector<int32_t> positions = {64, 192};
      AttentionSequence sequence = c.Sequence(10, 200, absorbed_from);
      sequence.blocks = blocks;
      sequence.block_positions = positions;
      sequence.key_count = 128;
      Tensor want(DType::kF32, {200, kTiny.heads * kTiny.value});
      Tensor want_lse(DType::kF32, {200, kTiny.heads});
      const auto args = [&](const Tensor& out, const Tensor& lse, bool packed) {
        return c.Args(out.view, lse.view, 10, 200, {&sequence, 1}, packed);
      };
      // The reference counts keys through `blocks`, so it sees the same two.
      reference::MlaAttention({}, args(want, want_lse, false));
      for (const Isa isa : SupportedIsas()) {
        SCOPED_TRACE(NameOf(isa));
        const ForcedIsa forced(isa);
        Tensor got(act, {200, kTiny.heads * kTiny.value});
        Tensor lse(DType::kF32, {200, kTiny.heads});
        context.scratch.Reset();

        MlaAttention(context.get(), args(got, lse, true));

        const auto tolerance = act == DType::kF32 ? baltoro::test::kF32 : baltoro::test::kBf16;
        EXPECT_TRUE(Near(got.values(), want.values(), tolerance));
        for (int64_t i = 0; i < 200 * kTiny.heads; ++i) {
          if (i / kTiny.heads + 10 < 64) {
            ASSERT_EQ(lse.at(i), -std::numeric_limits<float>::infinity());
            ASSERT_EQ(got.at(i / kTiny.heads * kTiny.heads * kTiny.value), 0);
          } else {
            ASSERT_NEAR(lse.at(i), want_lse.at(i), 0.02);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace baltoro::cpu::test
