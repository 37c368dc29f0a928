#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "ops/cpu/test_tensors.h"
#include "support/support.h"

namespace baltoro::cpu::test {
namespace {

using baltoro::test::Near;

struct Shape {
  int64_t tokens, hidden, inter, experts, top_k, absent;
};
constexpr Shape kShapes[] = {
    {1, 64, 32, 4, 2, 0},    {1, 96, 48, 8, 8, 3},  // up starts inside a panel
    {7, 256, 128, 16, 4, 0},                        // the pocket model's experts
    {40, 100, 36, 5, 3, 1},                         // nothing is a multiple of anything
    {130, 128, 64, 3, 3, 0},                        // every token in every expert
    {300, 64, 32, 2, 1, 0},                         // groups longer than one product
    {2, 2048, 352, 3, 2, 0},                        // as deep as the 16-billion model's experts
};

struct Case {
  Case(const Shape& shape, DType act) : Case(shape, act, act) {}
  Case(const Shape& shape, DType act, DType stored)
      : s(shape),
        gate_up(1,
                stored,
                s.experts - s.absent,
                2 * s.inter,
                s.hidden,
                1 / std::sqrt(static_cast<float>(s.hidden))),
        down(2,
             stored,
             s.experts - s.absent,
             s.hidden,
             s.inter,
             1 / std::sqrt(static_cast<float>(s.inter))),
        x(Random(3, act, {s.tokens, s.hidden}, 1)),
        weights(Random(4, DType::kF32, {s.tokens, s.top_k}, 1)),
        ids(DType::kI32, {s.tokens, s.top_k}) {
    // The first `absent` experts are held elsewhere; the slots are in another order.
    for (int64_t e = 0; e < s.experts; ++e) {
      slot_of.push_back(static_cast<int32_t>(e < s.absent ? -1 : s.experts - 1 - e));
    }
    std::mt19937 engine(5);
    std::vector<int32_t> all(static_cast<size_t>(s.experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t t = 0; t < s.tokens; ++t) {
      std::shuffle(all.begin(), all.end(), engine);
      for (int64_t j = 0; j < s.top_k; ++j) {
        ids.view.row<int32_t>(t)[j] = all[static_cast<size_t>(j)];
      }
    }
  }
  ExpertBankArgs Args(TensorView out, int64_t first, int64_t count, bool packed) const {
    return {.out = out,
            .x = x.view.rows(first, count),
            .ids = ids.view.rows(first, count),
            .weights = weights.view.rows(first, count),
            .gate_up = packed ? gate_up.packed : gate_up.reference,
            .down = packed ? down.packed : down.reference,
            .slot_of = slot_of};
  }

  Shape s;
  Weights gate_up;
  Weights down;
  Tensor x;
  Tensor weights;
  Tensor ids;
  std::vector<int32_t> slot_of;
};

TEST(ExpertBankTest, AgreesWithTheReferenceAndAddsToItsOutput) {
  Context context(3);
  for (const Shape& shape : kShapes) {
    for (const DType act : {DType::kBf16, DType::kF32}) {
      const Case c(shape, act);
      Tensor want = Random(6, DType::kF32, {shape.tokens, shape.hidden}, 1);
      reference::ExpertBank({}, c.Args(want.view, 0, shape.tokens, false));
      for (const Isa isa : SupportedIsas()) {
        ASSERT_TRUE(ForceIsa(isa).ok());
        Tensor got = Random(6, DType::kF32, {shape.tokens, shape.hidden}, 1);
        context.scratch.Reset();

        ExpertBank(context.get(), c.Args(got.view, 0, shape.tokens, true));

        // In bf16 the intermediate is rounded once.
        const auto tolerance = act == DType::kF32 ? baltoro::test::kF32 : baltoro::test::kBf16;
        ASSERT_TRUE(Near(got.values(), want.values(), tolerance))
            << NameOf(isa) << " T=" << shape.tokens << " H=" << shape.hidden;
      }
    }
  }
}

TEST(ExpertBankTest, ATokenDoesNotDependOnItsCompanyOrOnThreads) {
  const Shape shape = {90, 160, 96, 6, 3, 1};
  Context one(1);
  Context four(4);
  for (const auto& [act, stored] : kTypes) {
    const Case c(shape, act, stored);
    for (const Isa isa : SupportedIsas()) {
      const ForcedIsa forced(isa);
      Tensor all(DType::kF32, {shape.tokens, shape.hidden});
      ExpertBank(four.get(), c.Args(all.view, 0, shape.tokens, true));
      for (const int64_t count : {1, 2, 17, 40}) {
        Tensor some(DType::kF32, {count, shape.hidden});

        ExpertBank(one.get(), c.Args(some.view, 31, count, true));

        ASSERT_EQ(0, std::memcmp(some.view.data, all.view.row<float>(31),
                                 static_cast<size_t>(count * shape.hidden) * sizeof(float)))
            << NameOf(isa) << " " << NameOf(act) << " with " << NameOf(stored) << " weights, "
            << count << " tokens";
      }
    }
  }
}

// Which copy a row's experts are follows from the row alone; rows are spread, and counted.
TEST(ExpertBankTest, RowsAreSpreadOverTheCopiesOfAnExpert) {
  constexpr int64_t kRows = 400, kTopK = 3, kExperts = 16;
  // Expert 0 lies in slots 2, 9 and 17, any other in one.
  std::vector<int32_t> first = {0}, slots = {2, 9, 17};
  for (int32_t slot = 0; slot < 18; ++slot) {
    if (slot != 2 && slot != 9 && slot != 17) slots.push_back(slot);
  }
  for (int32_t e = 0; e < kExperts; ++e) first.push_back(e + 3);
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < kRows; ++t) {
    for (const int32_t id : {1 + t % 15, 0, 1 + (t / 15 + t + 1) % 15}) ids.push_back(id);
  }
  std::vector<int64_t> by_expert(kExperts, 0);
  const auto chosen = [&](int64_t begin, int64_t rows, std::span<int64_t> counts) {
    std::vector<int32_t> some(ids.begin() + begin * kTopK, ids.begin() + (begin + rows) * kTopK);
    Context context(1);
    CpuSmallOps(DType::kF32)
        .choose_copies(context.get(), TensorView(some.data(), DType::kI32, {rows, kTopK}),
                       {.first = first, .slots = slots, .rows = counts, .chosen = by_expert});
    return some;
  };

  std::vector<int64_t> counts(slots.size(), 0);
  const std::vector<int32_t> all = chosen(0, kRows, counts);

  for (int64_t at = 0; at < std::ssize(all); ++at) {
    const auto id = static_cast<size_t>(ids[at]);
    EXPECT_TRUE(std::find(slots.begin() + first[id], slots.begin() + first[id + 1], all[at]) !=
                slots.begin() + first[id + 1]);
  }
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), kRows * kTopK);
  for (const size_t slot : {2, 9, 17}) {
    EXPECT_GT(counts[slot], kRows / 5) << slot;
    EXPECT_EQ(counts[slot], std::count(all.begin(), all.end(), static_cast<int32_t>(slot)));
  }
  EXPECT_EQ(by_expert[0], kRows);
  for (int32_t e = 1; e < kExperts; ++e) {
    EXPECT_EQ(by_expert[static_cast<size_t>(e)], std::ranges::count(ids, e)) << e;
  }
  const std::vector<int32_t> alone = chosen(77, 1, {});
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + 77 * kTopK));
}

}  // namespace
}  // namespace baltoro::cpu::test
