// Choices of attention, held to the launch table and to attention_choices.txt.

#include "ops/cuda/choose/attention.h"
#include "ops/cuda/choose/attention_half.h"
#include "ops/cuda/choose/attention_step.h"
#include "ops/cuda/choose/choice_test_support.h"
#include "ops/cuda/launch_table/questions_attention.h"

namespace baltoro::cuda {
namespace {

using choice_test::FixedSizes;
using choice_test::Launch;
using choice_test::Recorded;
using choice_test::Size;
using choice_test::Table;
using launch_table::AttentionCase;
using launch_table::AttentionHalfCase;

constexpr char kTreeFile[] = BT_CHOICES "/attention_choices.txt";
const Card kCard;

Size Grid(int64_t x, int64_t y = 1, int64_t z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

Launch HeadProductOf(const HeadProductPlan& plan, bool absorb, int64_t heads) {
  std::string name = absorb ? "<128, " : "<512, ";
  switch (plan.kernel) {
    case HeadProductWay::kRows16Columns32:
      name += absorb ? "16, 32, true, 128>" : "16, 32, false, 128>";
      break;
    case HeadProductWay::kRows64Columns32:
      name += absorb ? "64, 32, true, 128>" : "64, 32, false, 256>";
      break;
    case HeadProductWay::kRows64Columns64:
      name += absorb ? "64, 64, true, 128>" : "none";
      break;
    case HeadProductWay::kRows64Columns128:
      name += absorb ? "64, 128, true, 256>" : "none";
      break;
  }
  return {.name = "attention_products:HeadProductKernel" + name,
          .grid = Grid(plan.strips, heads, plan.row_blocks),
          .shared_bytes = static_cast<unsigned>(plan.shared_bytes)};
}

Launch DecodeOf(const DecodePlan& plan) {
  const auto name = [&]() -> const char* {
    switch (plan.kernel) {
      case DecodeWay::kBf16Rows8:
        return "mla_decode_heads8_bf16:MlaHeads8Bf16Kernel";
      case DecodeWay::kFp8Rows8:
        return "mla_decode_heads8_fp8:MlaHeads8Fp8Kernel";
      case DecodeWay::kBf16Rows64:
        return "mla_decode_kernel:MlaKernel<(MlaCacheType)0>";
      case DecodeWay::kFp8Rows64:
        return "mla_decode_kernel:MlaKernel<(MlaCacheType)1>";
      case DecodeWay::kFp8GroupsRows64:
        return "mla_decode_kernel:MlaKernel<(MlaCacheType)2>";
    }
    return "";
  };
  return {.name = name(),
          .grid = Grid(plan.parts),
          .shared_bytes = static_cast<unsigned>(plan.shared_bytes)};
}

Launch MergeOf(const MergePlan& plan, int64_t heads) {
  switch (plan.kernel) {
    case MergeWay::kWithValuesRow1:
      return {.name = "mla_merge_values:MergeValuesKernel", .grid = Grid(4, heads, plan.blocks)};
    case MergeWay::kWithValuesRows2:
      return {.name = "mla_merge_rows:MergeRowsKernel<2>", .grid = Grid(4, heads, plan.blocks)};
    case MergeWay::kWithValuesRows4:
      return {.name = "mla_merge_rows:MergeRowsKernel<4>", .grid = Grid(4, heads, plan.blocks)};
    case MergeWay::kWithValuesRows8:
      return {.name = "mla_merge_rows:MergeRowsKernel<8>", .grid = Grid(4, heads, plan.blocks)};
    case MergeWay::kWithValuesRows16:
      return {.name = "mla_merge_rows:MergeRowsKernel<16>", .grid = Grid(4, heads, plan.blocks)};
    case MergeWay::kQuarters:
      return {.name = "mla_decode_merge:MergeKernel<true>", .grid = Grid(plan.blocks)};
    case MergeWay::kRows:
      return {.name = "mla_decode_merge:MergeKernel<false>", .grid = Grid(plan.blocks)};
  }
  return {};
}

AttentionStep StepOf(const AttentionCase& c, int64_t rows) {
  const launch_table::StepOfSequences of(rows, c.cache.form, c.heads, c.keys);
  return ChooseAttentionStep(of.args, kAttentionPassBytes, kCard);
}

AbsorbedPlan AbsorbedOf(const AttentionCase& c, const AttentionStep& step) {
  return ChooseAbsorbed({.limits = step.limits, .rows = step.absorbed_rows, .sums = c.sums});
}

PrefillPlan PrefillOf(const AttentionCase& c, const ExpandedPass& pass) {
  return ChoosePrefill({.rows = std::max<int64_t>(pass.rows, kPrefillKeys),
                        .heads = static_cast<int32_t>(c.heads),
                        .tiles = pass.tiles,
                        .merges = pass.merges});
}

void AddLaunches(const AttentionCase& c, const AttentionStep& step, std::vector<Launch>& to) {
  if (!step.runs.empty()) {
    const AbsorbedPlan plan = AbsorbedOf(c, step);
    to.push_back(HeadProductOf(plan.absorb, true, c.heads));
    to.push_back(DecodeOf(plan.decode));
    to.push_back(MergeOf(plan.merge, c.heads));
    if (!plan.merge.with_values()) to.push_back(HeadProductOf(plan.values, false, c.heads));
  }
  for (const ExpandedPass& pass : step.passes) {
    if (pass.tiles == 0) continue;
    const std::string form = std::to_string(static_cast<int>(c.cache.form));
    to.push_back({.name = "attention_gather:GatherKernel<(KvForm)" + form + ">",
                  .grid = Grid(pass.rows / 8)});
    to.push_back({.name = "cuBLASLt"});  // keys and values of the latents
    const PrefillPlan plan = PrefillOf(c, pass);
    to.push_back({.name = "attention_prefill:PrefillKernel", .grid = Grid(plan.blocks)});
    if (plan.merges == 0) continue;
    to.push_back({.name = "attention_merge:PrefillMergeKernel",
                  .grid = Grid(plan.merges, c.heads, kPrefillMergeBlocks)});
  }
}

RowsFacts Rows(DType type, int64_t rows, int64_t width) {
  return {
      .type = type, .rows = rows, .width = width, .row_bytes = rows > 1 ? width * SizeOf(type) : 0};
}

AttentionHalfQuestion QuestionOf(const AttentionHalfCase& c, int64_t rows) {
  using namespace launch_table;  // NOLINT: the family's sizes
  const Rank& r = c.rank;
  const auto matrix = [](const product_test::FormCase& form, int64_t n, int64_t k,
                         int64_t count = 1) -> MatrixFacts {
    return {
        .form = form.form, .quantise_input = form.quantise_input, .n = n, .k = k, .count = count};
  };
  const product_test::FormCase& plain = product_test::kForms[0];
  const StepOfSequences of(rows, c.cache.form, r.heads, kKeys[0]);
  const AttentionStep step = ChooseAttentionStep(of.args, kAttentionPassBytes, kCard);
  return {.x = Rows(DType::kBf16, rows, r.hidden),
          .out = Rows(DType::kF32, rows, r.hidden),
          .norm_ahead = c.norm_ahead,
          .norm_behind = c.norm_behind,
          .norms_join = rows <= 16,
          .x_coded = c.form.quantise_input,
          .qkv_a = matrix(c.form, r.qkv_a(), r.hidden),
          .q = matrix(c.form, r.head_width(), r.q_lora),
          .uk_t = matrix(plain, kLatent, kNope, r.heads),
          .kv_b = matrix(plain, r.heads * (kNope + kValue), kLatent),
          .o = matrix(c.form, r.hidden, r.heads * kValue),
          .cache = c.cache.form,
          .heads = static_cast<int32_t>(r.heads),
          .nope = kNope,
          .rope = kRope,
          .value = kValue,
          .latent = kLatent,
          .q_lora = r.q_lora,
          .absorbed = step.passes.empty() && step.absorbed_rows == rows,
          .limits = step.limits,
          .card = kCard};
}

const char* KernelOf(AttentionHalfWay kernel) {
  switch (kernel) {
    case AttentionHalfWay::kApart:
      return "";
    case AttentionHalfWay::kBf16Rows1:
      return "resident_attention:ResidentKernel<Plain<896> >";
    case AttentionHalfWay::kBf16Rows8:
      return "resident_attention:ResidentKernel<Plain<448> >";
    case AttentionHalfWay::kFp8Rows1:
      return "resident_attention:ResidentKernel<Coded<resident::Decoder> >";
    case AttentionHalfWay::kFp8Rows1CacheFp8:
      return "resident_attention:ResidentKernel<Coded<resident::Fp8Decoder> >";
  }
  return "";
}

// A table of answers: `launches_of(question, rows, launches)`, false where it is not taken so.
template <typename Case, typename LaunchesOf>
void Answer(Table& table, std::set<std::string>& asked, const Case& c, LaunchesOf launches_of) {
  // Shapes of several models are the same.
  if (!asked.insert(c.name).second) return;
  table.Add(c.name, launch_table::Intervals(c.range, [&](int64_t rows, std::vector<Launch>& to) {
              return launches_of(c, rows, to);
            }));
}

Table RecordedAttention() {
  Table attention = Recorded().StartingWith("attention, ");
  attention.Take(Recorded().StartingWith("attention half, "));
  return attention;
}

TEST(AttentionChoiceTest, AsTheCardLaunched) {
  const Table recorded = RecordedAttention();
  const FixedSizes sizes(recorded);
  const auto complete = [&](std::vector<Launch>& launches) {
    for (Launch& launch : launches) sizes.Complete(launch);
  };
  Table chosen;
  std::set<std::string> asked;

  for (const AttentionCase& c : launch_table::AttentionCases()) {
    Answer(chosen, asked, c, [&](const auto&, int64_t rows, std::vector<Launch>& to) {
      AddLaunches(c, StepOf(c, rows), to);
      complete(to);
      return true;
    });
  }
  for (const AttentionHalfCase& c : launch_table::AttentionHalfCases()) {
    Answer(chosen, asked, c, [&](const auto&, int64_t rows, std::vector<Launch>& to) {
      const AttentionHalfPlan plan = ChooseAttentionHalf(QuestionOf(c, rows));
      if (plan.kernel == AttentionHalfWay::kApart) return false;
      to.push_back({.name = KernelOf(plan.kernel), .grid = Grid(plan.blocks)});
      complete(to);
      return true;
    });
  }

  choice_test::ExpectAsRecorded(chosen, recorded);
}

// Fewer questions than the card was asked: what the others add is the same again.
TEST(AttentionChoiceTest, AsInTheTree) {
  Table chosen;
  std::set<std::string> asked;

  for (AttentionCase c : launch_table::AttentionCases()) {
    // One prompt and what is left for another.
    if (c.keys.queries == 512) c.range = {.least = 512, .most = 576, .every = 576};
    Answer(chosen, asked, c, [](const auto& of, int64_t rows, std::vector<Launch>& to) {
      const AttentionStep step = StepOf(of, rows);
      std::string text = Text(step);
      if (!step.runs.empty()) text += ": " + Text(AbsorbedOf(of, step));
      to.push_back({.name = text});
      return true;
    });
  }
  for (const AttentionHalfCase& c : launch_table::AttentionHalfCases()) {
    if (c.rank.hidden != 7168 || c.rank.heads != 8) continue;
    Answer(chosen, asked, c, [](const auto& of, int64_t rows, std::vector<Launch>& to) {
      to.push_back({.name = Text(ChooseAttentionHalf(QuestionOf(of, rows)))});
      return true;
    });
  }
  struct PassCase {
    std::string name;
    int32_t heads;
    launch_table::RowRange range = {.least = kPrefillKeys, .most = 16384, .every = 0};
  };
  for (const launch_table::Rank& r : launch_table::Ranks()) {
    const PassCase c{"pass of so many keys, " + std::to_string(r.heads) + " heads",
                     static_cast<int32_t>(r.heads)};
    Answer(chosen, asked, c, [](const auto& of, int64_t keys, std::vector<Launch>& to) {
      to.push_back({.name = Text(ChoosePrefill({.rows = keys, .heads = of.heads, .tiles = 1}))});
      return true;
    });
  }

  choice_test::ExpectAsInTheTree(chosen, kTreeFile);
}

TEST(AttentionChoiceTest, TheHalfIsOneLaunchOnlyOnACardOfItsOwn) {
  int taken = 0;
  for (const AttentionHalfCase& c : launch_table::AttentionHalfCases()) {
    for (int64_t rows = 1; rows <= 8; ++rows) {
      AttentionHalfQuestion question = QuestionOf(c, rows);
      if (ChooseAttentionHalf(question).kernel != AttentionHalfWay::kApart) ++taken;
      question.card.owned = false;
      EXPECT_EQ(ChooseAttentionHalf(question).kernel, AttentionHalfWay::kApart) << c.name;
    }
  }
  EXPECT_GT(taken, 0);
}

TEST(AttentionChoiceTest, DealtKeysAreEachReadOnce) {
  constexpr launch_table::Keys kKeys = {.name = "", .queries = 0, .before = 32768};
  const launch_table::StepOfSequences of(600, KvForm::kBf16, 8, kKeys);

  const AttentionStep step = ChooseAttentionStep(of.args, kAttentionPassBytes, kCard);

  ASSERT_EQ(step.passes.size(), 1u);
  ASSERT_EQ(step.merges.size(), 5u);  // one for each tile of 128 query tokens
  int64_t parts = 0;
  for (const PrefillMerge& merge : step.merges) {
    std::map<int32_t, int32_t> tiles_from;  // key row -> key tiles
    for (const PrefillTile& tile : step.tiles) {
      if (tile.query_row == merge.query_row) tiles_from[tile.key_row] = tile.key_tiles;
    }
    int32_t next = 0;
    for (const auto& [key_row, tiles] : tiles_from) {
      EXPECT_EQ(key_row, next);
      next = key_row + tiles * kPrefillKeys;
    }
    EXPECT_EQ(next, (32768 + merge.query_row + merge.query_count + 127) / 128 * 128);
    EXPECT_EQ(static_cast<int32_t>(tiles_from.size()), merge.parts);
    parts += merge.parts;
  }
  EXPECT_EQ(parts, step.passes[0].tiles);
  EXPECT_LE(parts * 8, kCard.multiprocessors);  // all find room at once
}

TEST(AttentionChoiceTest, OfVeryManySequencesShorterOnesAreExpanded) {
  // A hundred tokens each are 13 runs of 8, and 4096 runs are the most.
  constexpr launch_table::Keys kKeys = {.name = "", .queries = 100};
  const launch_table::StepOfSequences few(30'000, KvForm::kBf16, 8, kKeys);
  const launch_table::StepOfSequences many(40'000, KvForm::kBf16, 8, kKeys);

  EXPECT_TRUE(ChooseAttentionStep(few.args, kAttentionPassBytes, kCard).passes.empty());
  EXPECT_TRUE(ChooseAttentionStep(many.args, kAttentionPassBytes, kCard).runs.empty());
}

TEST(AttentionChoiceTest, EveryChoiceSaysWhy) {
  for (const AttentionCase& c : launch_table::AttentionCases()) {
    for (const int64_t rows : {1, 17, 130, 600}) {
      const AttentionStep step = StepOf(c, rows);
      EXPECT_NE(*step.why, '\0');
      if (step.runs.empty()) continue;
      const AbsorbedPlan plan = AbsorbedOf(c, step);
      EXPECT_NE(*plan.absorb.why, '\0');
      EXPECT_NE(*plan.decode.why, '\0');
      EXPECT_NE(*plan.merge.why, '\0');
    }
  }
}

TEST(AttentionChoiceTest, RowsOfASequenceStandAloneWhereTheyAreFewAndSeeFewKeys) {
  EXPECT_TRUE(ChooseRowsAlone(8, 4, KvForm::kBf16, 12288));
  EXPECT_FALSE(ChooseRowsAlone(8, 4, KvForm::kBf16, 12289));
  EXPECT_TRUE(ChooseRowsAlone(8, 8, KvForm::kFp8, 3072));
  EXPECT_FALSE(ChooseRowsAlone(8, 8, KvForm::kBf16, 3073));
  EXPECT_FALSE(ChooseRowsAlone(8, 9, KvForm::kBf16, 1));
  EXPECT_FALSE(ChooseRowsAlone(64, 4, KvForm::kBf16, 1));
  EXPECT_FALSE(ChooseRowsAlone(8, 4, KvForm::kFp8Groups, 1));
}

}  // namespace
}  // namespace baltoro::cuda
