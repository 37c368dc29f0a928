// Tables of overrides: what they say, what follows them, and what is refused.

#include "ops/cuda/choose/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/cuda/choose/attention_half.h"
#include "ops/cuda/choose/experts.h"
#include "ops/cuda/choose/inputs.h"
#include "ops/cuda/choose/recorded_card.h"

namespace baltoro::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A card with a table, and what was told of it.
class Tabled {
 public:
  explicit Tabled(const std::string& text) {
    auto table = Overrides::Parse(
        text, "t.txt:", [this](const std::string& line) { told_.push_back(line); });
    EXPECT_TRUE(table.ok()) << table.status().message();
    if (table.ok()) table_ = std::move(table).value();
    card_ = kRecordedCard;
    card_.overrides = table_.get();
  }
  const Card& card() const { return card_; }
  const Overrides& table() const { return *table_; }
  Overrides& table() { return *table_; }
  const std::vector<std::string>& told() const { return told_; }

 private:
  std::vector<std::string> told_;
  std::unique_ptr<Overrides> table_;
  Card card_;
};

std::string ErrorOf(const std::string& text) {
  const auto table = Overrides::Parse(text, "t.txt:", nullptr);
  return table.status().message();
}

RowsFacts Rows(DType type, int64_t rows, int64_t width) {
  return FactsOf(TensorView(nullptr, type, {rows, width}));
}

MatrixFacts Matrix(WeightForm form, int64_t n, int64_t k) {
  return {.form = form, .quantise_input = form == WeightForm::kFp8Block, .n = n, .k = k};
}

LinearQuestion Linear(WeightForm form, int64_t rows, int64_t n, int64_t k) {
  return {.x = Rows(DType::kBf16, rows, k),
          .w = Matrix(form, n, k),
          .out = Rows(DType::kBf16, rows, n)};
}

// The bank of K2's rank of eight.
ExpertsQuestion Bank(WeightForm form, int64_t tokens, const Card& card) {
  ExpertsQuestion q;
  q.card = card;
  q.x = Rows(DType::kBf16, tokens, 7168);
  q.out = Rows(DType::kF32, tokens, 7168);
  q.top_k = 8;
  q.gate_up = Matrix(form, 512, 7168);
  q.down = Matrix(form, 7168, 256);
  q.gate_up.count = q.down.count = 384;
  return q;
}

OverrideQuestion Asked(int64_t rows) {
  OverrideQuestion asked = {.form = WeightForm::kFp8Block, .quantise_input = true};
  asked[OverrideFact::kRows] = rows;
  asked[OverrideFact::kN] = 2112;
  asked[OverrideFact::kK] = 7168;
  return asked;
}

TEST(OverridesTest, EntriesFitWhatTheySay) {
  const Tabled tabled(
      "# of one shape\r\n"
      "\r\n"
      "linear form=fp8_w8a8 n=2112 k=7168 rows=65..128 kernel=fp8_tiles  # pairs\r\n"
      "\tlinear rows=100 kernel=tiles\n"
      "experts tokens=100 kernel=grouped_products");

  EXPECT_EQ(tabled.table().size(), 3u);
  EXPECT_EQ(tabled.table().Find(Asked(64)), nullptr);
  EXPECT_EQ(tabled.table().Find(Asked(129)), nullptr);
  for (const int64_t rows : {65, 100, 128}) {
    const Override* const entry = tabled.table().Find(Asked(rows));
    ASSERT_NE(entry, nullptr) << rows;
    EXPECT_EQ(entry->name, "fp8_tiles");
    EXPECT_EQ(entry->why, "by the table of overrides, t.txt:3");
  }
  OverrideQuestion other = Asked(100);
  other.quantise_input = false;
  ASSERT_NE(tabled.table().Find(other), nullptr);
  EXPECT_EQ(tabled.table().Find(other)->place, "t.txt:4");
}

TEST(OverridesTest, ErrorsNameTheLineAndWhatWouldBeRight) {
  EXPECT_EQ(ErrorOf("\nlineer kernel=tiles"),
            "t.txt:2: no operation 'lineer'; operations are linear, experts, attention_half");
  EXPECT_EQ(ErrorOf("linear rows=1"),
            "t.txt:1: kernel=NAME is missing; kernels of linear: bf16_rows16, bf16_rows128, "
            "bf16_rows1024, fp8_rows16, fp8_rows256, fp8_tiles, tiles, blas, plain");
  EXPECT_THAT(ErrorOf("linear kernel=router_rows16"), HasSubstr("no kernel 'router_rows16'"));
  EXPECT_THAT(ErrorOf("experts kernel=tiles"), HasSubstr("int4_one_launch1, int4_one_launch4"));
  EXPECT_THAT(ErrorOf("experts kernel=none"), HasSubstr("no kernel 'none'"));
  EXPECT_EQ(ErrorOf("attention_half kernel=bf16_rows1"),
            "t.txt:1: no kernel 'bf16_rows1'; kernels of attention_half: apart");
  EXPECT_EQ(ErrorOf("linear tokens=1 kernel=tiles"),
            "t.txt:1: unknown key 'tokens'; linear takes form, n, k, rows and kernel");
  EXPECT_THAT(ErrorOf("linear rows = 1 kernel=tiles"), HasSubstr("'rows' is not KEY=VALUE"));
  EXPECT_THAT(ErrorOf("linear form=fp4 kernel=tiles"), HasSubstr("no form 'fp4'; forms are"));
  EXPECT_EQ(ErrorOf("linear n=1 n=2 kernel=tiles"), "t.txt:1: n is given twice");
  for (const char* const range :
       {"", "x", "-1", "1..", "..2", "1..2..3", "1.5", "99999999999999999999"}) {
    EXPECT_THAT(ErrorOf("linear kernel=tiles rows=" + std::string(range)),
                HasSubstr("write a number, or FIRST..LAST"))
        << range;
  }
  EXPECT_EQ(ErrorOf("linear rows=16..9 kernel=tiles"),
            "t.txt:1: rows is '16..9': write the smaller number first");
  EXPECT_THAT(ErrorOf(std::string(5000, '\x01')), HasSubstr("'???"));
  EXPECT_LT(ErrorOf(std::string(5000, '\x01')).size(), 200u);
}

TEST(OverridesTest, EntriesAreBounded) {
  std::string text;
  for (size_t i = 0; i < kOverridesMax; ++i) text += "linear kernel=tiles\n";
  EXPECT_EQ(ErrorOf(text), "");
  EXPECT_EQ(ErrorOf(text + "linear kernel=tiles\n"),
            "t.txt:65: more than 64 entries; join some by ranges");
}

TEST(OverridesTest, EveryKernelAndFormCanBeWrittenByTheNameThatIsPrinted) {
  for (const LinearKernel kernel : {LinearKernel::kBf16Rows16, LinearKernel::kPlain}) {
    EXPECT_EQ(ErrorOf(std::string("linear kernel=") + NameOf(kernel)), "");
  }
  for (auto at = static_cast<uint8_t>(ExpertsKernel::kInt4OneLaunch1);
       at <= static_cast<uint8_t>(ExpertsKernel::kGroupedProducts); ++at) {
    EXPECT_EQ(ErrorOf(std::string("experts kernel=") + NameOf(static_cast<ExpertsKernel>(at))), "");
  }
  EXPECT_EQ(ErrorOf("attention_half form=bf16 tokens=1..8 kernel=apart"), "");
  for (const char* const form :
       {"bf16", "f32", "fp8", "fp8_w8a8", "int4_group", "int8", "int4", "int8_static"}) {
    const auto named = FormOfName(form);
    ASSERT_TRUE(named.has_value()) << form;
    EXPECT_STREQ(FormName(named->form, named->quantise_input), form);
  }
}

TEST(OverridesTest, AProductFollowsItsEntry) {
  const Tabled tabled("linear form=bf16 n=7168 k=2048 rows=65..100 kernel=bf16_rows128");
  const auto plan = [&](int64_t rows) {
    return ChooseLinear(Linear(WeightForm::kBf16, rows, 7168, 2048), tabled.card());
  };

  EXPECT_EQ(plan(101).kernel, LinearKernel::kBlas);
  EXPECT_EQ(plan(65).kernel, LinearKernel::kBf16Rows128);
  EXPECT_STREQ(plan(65).why, "by the table of overrides, t.txt:1");
  EXPECT_GT(plan(65).as<Bf16Rows128Plan>().stages, 0);
  EXPECT_THAT(tabled.told(), IsEmpty());
}

TEST(OverridesTest, ProductsOfCodesFollowEntriesOfKernelsThatReadThem) {
  LinearQuestion q = Linear(WeightForm::kFp8Block, 64, 2112, 7168);
  ASSERT_EQ(ChooseLinear(q, kRecordedCard).kernel, LinearKernel::kFp8Rows256);
  const Tabled tiles("linear kernel=tiles"), blas("linear kernel=blas");

  EXPECT_EQ(Text(ChooseLinear(q, tiles.card())).substr(0, 16), "to_fp8 1, tiles ");
  q.input = LinearInput::kCodes;
  EXPECT_EQ(Text(ChooseLinear(q, tiles.card())).substr(0, 13), "codes, tiles ");
  EXPECT_EQ(ChooseLinear(q, blas.card()).kernel, LinearKernel::kFp8Rows256);
  EXPECT_THAT(blas.told(), ElementsAre(HasSubstr("these rows are there as codes alone")));
}

TEST(OverridesTest, WhatAKernelDoesNotTakeIsToldOnceAndChosenAsUsual) {
  const Tabled tabled("\nlinear n=2112 kernel=bf16_rows128");
  const auto ask = [&](WeightForm form, int64_t rows) {
    const LinearQuestion q = Linear(form, rows, 2112, 7168);
    EXPECT_EQ(Text(ChooseLinear(q, tabled.card())), Text(ChooseLinear(q, kRecordedCard)));
  };

  ask(WeightForm::kBf16, 300);
  ask(WeightForm::kBf16, 400);
  ask(WeightForm::kFp8Block, 64);

  EXPECT_THAT(tabled.told(),
              ElementsAre("t.txt:2: bf16_rows128 does not take linear form=bf16 rows=300 n=2112 "
                          "k=7168: it takes 9 to 128 rows; what the engine chooses is used instead",
                          HasSubstr("form=fp8_w8a8 rows=64 n=2112 k=7168: it takes bf16")));
}

// Where the library has no algorithm the question comes once more.
TEST(OverridesTest, ALibraryWithoutAnAlgorithmIsNotAskedAgain) {
  const Tabled tabled("linear kernel=blas");
  LinearQuestion q = Linear(WeightForm::kBf16, 4, 2112, 7168);

  EXPECT_EQ(ChooseLinear(q, tabled.card()).kernel, LinearKernel::kBlas);
  q.has_blas = false;
  EXPECT_EQ(ChooseLinear(q, tabled.card()).kernel, LinearKernel::kBf16Rows16);
  EXPECT_EQ(tabled.told().size(), 1u);
}

TEST(OverridesTest, AProductThatAnEntryNamesIsNotJoinedToANorm) {
  const Tabled tiles("linear kernel=tiles"), same("linear kernel=bf16_rows16"),
      vain("linear kernel=fp8_tiles");
  const LinearQuestion q = Linear(WeightForm::kBf16, 4, 7168, 1024);
  for (const auto choose : {ChooseLinearToNorm, ChooseLinearFromNorm}) {
    EXPECT_EQ(choose(q, true, tiles.card()).kernel, LinearKernel::kNone);
    EXPECT_STREQ(choose(q, true, tiles.card()).why, "by the table of overrides, t.txt:1");
    EXPECT_EQ(choose(q, true, same.card()).kernel, LinearKernel::kBf16Rows16);
    EXPECT_EQ(choose(q, true, vain.card()).kernel, LinearKernel::kBf16Rows16);
  }
}

TEST(OverridesTest, AProductThatAnEntryNamesIsNotJoinedToOthers) {
  const ExpertInputsQuestion inputs = {.x = Rows(DType::kBf16, 4, 7168),
                                       .gate_up = Matrix(WeightForm::kBf16, 512, 7168),
                                       .shared = Rows(DType::kBf16, 4, 512),
                                       .router = Matrix(WeightForm::kBf16, 384, 7168),
                                       .logits = Rows(DType::kF32, 4, 384)};
  ASSERT_EQ(ChooseExpertInputs(inputs, kRecordedCard).order, ExpertInputsOrder::kTogether);
  const Tabled shared("linear n=512 kernel=tiles"), router("linear n=384 kernel=tiles");
  EXPECT_EQ(Text(ChooseExpertInputs(inputs, shared.card())),
            "tiles 8/8x4; then router: router_rows16");
  EXPECT_STREQ(ChooseExpertInputs(inputs, shared.card()).why, "by the table of overrides, t.txt:1");
  EXPECT_THAT(Text(ChooseExpertInputs(inputs, router.card())), HasSubstr("; then router: tiles"));

  AttentionInputsQuestion attention = {.qkv_a = Rows(DType::kBf16, 4, 2112),
                                       .q_lora = 1536,
                                       .latent = 512,
                                       .rope = 64,
                                       .heads = 8,
                                       .head_width = 192,
                                       .q = Rows(DType::kBf16, 4, 1536),
                                       .q_weight = Matrix(WeightForm::kBf16, 1536, 1536)};
  ASSERT_EQ(ChooseAttentionInputs(attention, kRecordedCard).kernel,
            AttentionInputsKernel::kWithQueries);
  const Tabled queries("linear n=1536 k=1536 kernel=tiles");
  EXPECT_THAT(Text(ChooseAttentionInputs(attention, queries.card())), HasSubstr("rows; tiles"));
  EXPECT_STREQ(ChooseAttentionInputs(attention, queries.card()).why,
               "by the table of overrides, t.txt:1");

  LinearQuestion gated = Linear(WeightForm::kFp8Block, 4, 7168, 256);
  gated.x = Rows(DType::kBf16, 4, 512);
  gated.input = LinearInput::kGateUp;
  ASSERT_EQ(ChooseGatedLinear(gated, kRecordedCard).way, GatedWay::kInProduct);
  const Tabled second("linear k=256 kernel=tiles");
  EXPECT_THAT(Text(ChooseGatedLinear(gated, second.card())), HasSubstr("gated to codes, tiles"));
}

TEST(OverridesTest, TheAttentionHalfIsApartWhereItOrAProductIsNamed) {
  AttentionHalfQuestion q;
  q.x = Rows(DType::kBf16, 1, 7168);
  q.out = Rows(DType::kF32, 1, 7168);
  q.qkv_a = Matrix(WeightForm::kBf16, 2112, 7168);
  q.q = Matrix(WeightForm::kBf16, 1536, 1536);
  q.uk_t = Matrix(WeightForm::kBf16, 512, 128);
  q.kv_b = Matrix(WeightForm::kBf16, 2048, 512);
  q.o = Matrix(WeightForm::kBf16, 7168, 1024);
  q.heads = 8;
  q.nope = q.value = 128;
  q.rope = 64;
  q.latent = 512;
  q.q_lora = 1536;
  q.card = kRecordedCard;
  q.uk_t.count = 8;
  q.limits.max_query_tokens = 1;
  q.limits.multiprocessors = 132;
  ASSERT_EQ(Text(ChooseAttentionHalf(q)), "bf16_rows1") << ChooseAttentionHalf(q).why;

  for (const char* const text :
       {"attention_half form=bf16 tokens=1 kernel=apart", "linear n=7168 k=1024 kernel=tiles"}) {
    const Tabled tabled(text);
    q.card = tabled.card();
    EXPECT_EQ(Text(ChooseAttentionHalf(q)), "apart") << text;
    EXPECT_STREQ(ChooseAttentionHalf(q).why, "by the table of overrides, t.txt:1");
  }
  const Tabled other("attention_half tokens=2..8 kernel=apart\nlinear k=1024 n=1 kernel=tiles");
  q.card = other.card();
  EXPECT_EQ(Text(ChooseAttentionHalf(q)), "bf16_rows1");
}

TEST(OverridesTest, ABankFollowsItsEntry) {
  const Tabled tabled(
      "experts form=int4_group slots=384 hidden=7168 intermediate=256 top_k=8 tokens=40..50 "
      "kernel=int4_streaming\n"
      "experts form=fp8_w8a8 kernel=fp8_grouped128");

  const ExpertsPlan plan = ChooseExperts(Bank(WeightForm::kInt4Group, 40, tabled.card()));
  EXPECT_EQ(plan.kernel, ExpertsKernel::kInt4Streaming);
  EXPECT_EQ(plan.tile_rows, 32);
  EXPECT_STREQ(plan.why, "by the table of overrides, t.txt:1");
  EXPECT_EQ(ChooseExperts(Bank(WeightForm::kInt4Group, 51, tabled.card())).kernel,
            ExpertsKernel::kInt4Digits);
  EXPECT_EQ(ChooseExperts(Bank(WeightForm::kFp8Block, 4, tabled.card())).kernel,
            ExpertsKernel::kFp8Grouped128);
  EXPECT_THAT(tabled.told(), IsEmpty());
}

TEST(OverridesTest, ABankThatItsEntryDoesNotFitIsChosenAsUsual) {
  const Tabled sum("experts kernel=int4_grouped_sum"), one("experts kernel=int4_one_launch1");

  ExpertsQuestion q = Bank(WeightForm::kInt4Group, 300, sum.card());
  EXPECT_EQ(ChooseExperts(q).kernel, ExpertsKernel::kInt4GroupedSum);
  q.card.owned = false;
  EXPECT_EQ(ChooseExperts(q).kernel, ExpertsKernel::kInt4Digits);
  EXPECT_THAT(sum.told(),
              ElementsAre("t.txt:1: int4_grouped_sum does not take experts form=int4_group "
                          "tokens=300 slots=384 hidden=7168 intermediate=256 top_k=8: it takes an "
                          "intermediate size of 256, and the card owned; what the engine chooses "
                          "is used instead"));

  // Asked before all is known: nothing is told.
  q.card = one.card();
  q.ahead = true;
  EXPECT_EQ(ChooseExperts(q).kernel, ExpertsKernel::kInt4Digits);
  EXPECT_THAT(one.told(), IsEmpty());
  q.ahead = false;
  ChooseExperts(q);
  EXPECT_THAT(one.told(), ElementsAre(HasSubstr("it takes one token")));
}

// What a listener is told of a question.
struct Heard {
  std::string question, built_in;
  std::vector<std::string> others;
};

// Each kernel that is named to a listener is followed, and is not the one that would be chosen.
TEST(OverridesTest, ListenersAreToldWhatElseTakesAQuestion) {
  Tabled tabled("");
  std::vector<Heard> heard;
  tabled.table().Listen([&](const std::string& question, const std::string& built_in,
                            const std::vector<std::string>& others) {
    heard.push_back({question, built_in, others});
  });
  const LinearQuestion linear = Linear(WeightForm::kBf16, 64, 2112, 7168);
  const std::string chosen = NameOf(ChooseLinear(linear, tabled.card()).kernel);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].question, "linear form=bf16 rows=64 n=2112 k=7168");
  EXPECT_EQ(heard[0].built_in, chosen);
  EXPECT_GE(heard[0].others.size(), 2u);
  for (const std::string& other : heard[0].others) {
    const Tabled with(heard[0].question + " kernel=" + other);
    EXPECT_EQ(NameOf(ChooseLinear(linear, with.card()).kernel), other);
    EXPECT_NE(other, chosen);
    EXPECT_THAT(with.told(), IsEmpty());
  }

  for (const WeightForm form : {WeightForm::kInt4Group, WeightForm::kFp8Block}) {
    heard.clear();
    const std::string way = NameOf(ChooseExperts(Bank(form, 16, tabled.card())).kernel);
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].built_in, way);
    EXPECT_GE(heard[0].others.size(), 2u);
    for (const std::string& other : heard[0].others) {
      const Tabled with(heard[0].question + " kernel=" + other);
      EXPECT_EQ(NameOf(ChooseExperts(Bank(form, 16, with.card())).kernel), other);
      EXPECT_NE(other, way);
      EXPECT_THAT(with.told(), IsEmpty());
    }
  }

  ExpertsQuestion ahead = Bank(WeightForm::kInt4Group, 16, tabled.card());
  ahead.ahead = true;
  heard.clear();
  ChooseExperts(ahead);
  EXPECT_TRUE(heard.empty());  // its own turn comes
}

TEST(OverridesTest, EntriesOverlapWhereAQuestionFitsBoth) {
  const auto table = Overrides::Parse(
      "linear rows=1..8 kernel=blas\n"
      "linear form=bf16 rows=8..16 kernel=tiles\n"
      "linear form=fp8 rows=16 kernel=tiles\n"
      "experts kernel=int4_digits\n",
      "t.txt:", nullptr);
  ASSERT_TRUE(table.ok());
  const auto entries = table.value()->entries();
  EXPECT_TRUE(entries[0].Overlaps(entries[1]));
  EXPECT_TRUE(entries[1].Overlaps(entries[0]));
  EXPECT_FALSE(entries[0].Overlaps(entries[2]));  // rows
  EXPECT_FALSE(entries[1].Overlaps(entries[2]));  // form
  EXPECT_FALSE(entries[0].Overlaps(entries[3]));  // operation
}

TEST(OverridesTest, EntriesAreReplacedAndPlansKeepTheirReasons) {
  Tabled tabled("linear kernel=tiles");
  const LinearQuestion linear = Linear(WeightForm::kBf16, 64, 2112, 7168);
  const LinearPlan before = ChooseLinear(linear, tabled.card());
  auto other = Overrides::Parse("linear kernel=blas", "u.txt:", nullptr);
  ASSERT_TRUE(other.ok());
  tabled.table().Replace(std::move(*other.value()));
  const LinearPlan after = ChooseLinear(linear, tabled.card());
  EXPECT_STREQ(before.why, "by the table of overrides, t.txt:1");
  EXPECT_EQ(after.kernel, LinearKernel::kBlas);
  EXPECT_STREQ(after.why, "by the table of overrides, u.txt:1");
}

}  // namespace
}  // namespace baltoro::cuda
