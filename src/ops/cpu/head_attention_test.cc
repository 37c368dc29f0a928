// Attention with keys for each head, against the plain loops of the reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/cpu/test_tensors.h"
#include "support/support.h"

namespace baltoro::cpu::test {
namespace {

using baltoro::test::Near;

constexpr int64_t kBlock = KvLayerView::kBlockTokens;

struct Dims {
  int32_t heads, key_heads, width;
};
constexpr Dims kDims[] = {
    {8, 8, 128},  // as published drafts
    {8, 2, 64},   // four heads read the same keys
    {3, 1, 20},   // no multiple of 32
};

// A sequence of `keys` tokens whose blocks lie in shuffled places; what no key owns is NaN.
struct Case {
  Case(const Dims& dims, DType act, int64_t key_total)
      : d(dims),
        keys(key_total),
        q(Random(3, act, {keys, d.heads, d.width}, 1)),
        cache{.data = nullptr,
              .form = PlainKvForm(act),
              .num_blocks = Blocks() + 2,
              .latent = d.key_heads * d.width,
              .rope = d.key_heads * d.width} {
    const auto bytes = static_cast<size_t>(cache.num_blocks * kBlock * cache.token_bytes());
    memory = Buffer::Create(bytes, "test").value();
    cache.data = memory.data();
    std::memset(cache.data, 0xFF, bytes);
    blocks.resize(static_cast<size_t>(Blocks()));
    std::iota(blocks.begin(), blocks.end(), 1);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(4));
    const int64_t half = cache.latent;
    const Tensor values = Random(5, act, {keys, 2 * half}, 1);
    const Tensor slots(DType::kI64, {keys});
    for (int64_t key = 0; key < keys; ++key) {
      slots.view.as<int64_t>()[key] =
          blocks[static_cast<size_t>(key / kBlock)] * kBlock + key % kBlock;
    }
    KvWrite({}, cache, values.view.columns(0, half), values.view.columns(half, half), slots.view);
  }
  int64_t Blocks() const { return (keys + kBlock - 1) / kBlock; }
  // Of queries [first, first + count), whose keys end with them.
  std::vector<float> Run(const OpContext& ctx, int64_t first, int64_t count, bool reference) const {
    const AttentionSequence sequence{.query_begin = 0,
                                     .query_count = static_cast<int32_t>(count),
                                     .first_position = static_cast<int32_t>(first),
                                     .absorbed_from = 0,
                                     .blocks = blocks,
                                     .block_positions = {},
                                     .key_count = static_cast<int32_t>(first + count)};
    const Tensor out(q.view.dtype, {count, int64_t{d.heads} * d.width});
    const HeadAttentionArgs args{.out = out.view,
                                 .q = q.view.rows(first, count),
                                 .cache = cache,
                                 .sequences = std::span(&sequence, 1),
                                 .scale = 1 / std::sqrt(static_cast<float>(d.width)),
                                 .key_heads = d.key_heads};
    if (reference) {
      reference::HeadAttention({}, args);
    } else {
      HeadAttention(ctx, args);
    }
    return out.values();
  }

  Dims d;
  int64_t keys;
  Tensor q;
  Buffer memory;
  KvLayerView cache;
  std::vector<int32_t> blocks;
};

TEST(HeadAttentionTest, AgreesWithTheReference) {
  for (const Dims& dims : kDims) {
    for (const DType act : {DType::kF32, DType::kBf16}) {
      const Case c(dims, act, 150);
      for (const auto& [first, count] : {std::pair{149, 1}, {0, 150}, {60, 9}}) {
        const std::vector<float> want = c.Run({}, first, count, true);
        for (const Isa isa : SupportedIsas()) {
          const ForcedIsa forced(isa);
          Context context(3);
          EXPECT_TRUE(Near(c.Run(context.get(), first, count, false), want,
                           act == DType::kF32 ? baltoro::test::kF32 : baltoro::test::kBf16))
              << NameOf(isa) << ' ' << dims.heads << ' ' << first << ' ' << count;
        }
      }
    }
  }
}

TEST(HeadAttentionTest, ARowDependsOnNoOther) {
  for (const Dims& dims : kDims) {
    for (const DType act : {DType::kF32, DType::kBf16}) {
      const Case c(dims, act, 150);
      for (const Isa isa : SupportedIsas()) {
        const ForcedIsa forced(isa);
        Context many(4), one(1);
        const std::vector<float> all = c.Run(many.get(), 0, 150, false);
        for (const auto& [first, count] : {std::pair{0, 1}, {63, 3}, {100, 50}}) {
          const std::vector<float> some = c.Run(one.get(), first, count, false);
          EXPECT_EQ(std::memcmp(some.data(), all.data() + first * dims.heads * dims.width,
                                some.size() * sizeof(float)),
                    0)
              << NameOf(isa) << ' ' << dims.heads << ' ' << first;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baltoro::cpu::test
