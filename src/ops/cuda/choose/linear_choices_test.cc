// The choices of products, and of what lies ahead of attention and of the experts, held to the
// launch table (what each operation launched on a card) and to choices in linear_choices.txt, which
// a change rewrites with BT_WRITE=1.

#include <gtest/gtest.h>

#include <set>

#include "ops/cuda/choose/choice_test_support.h"
#include "ops/cuda/choose/inputs.h"
#include "ops/cuda/choose/linear_launches.h"
#include "ops/cuda/choose/recorded_card.h"
#include "ops/cuda/launch_table/questions_card.h"
#include "ops/cuda/launch_table/questions_linear.h"

namespace baltoro::cuda {
namespace {

using choice_test::ExpectAsInTheTree;
using choice_test::ExpectAsRecorded;
using choice_test::Recorded;
using launch_table::AttentionInputsCase;
using launch_table::ExpertInputsCase;
using launch_table::FormCase;
using launch_table::Launch;
using launch_table::LinearCase;
using launch_table::Rank;
using launch_table::RouterCase;
using launch_table::RowRange;
using launch_table::Table;

constexpr char kChoices[] = BT_CHOICES "/linear_choices.txt";
constexpr char kHeader[] =
    "# Which kernels compute products, and what lies ahead of attention and of the experts:\n"
    "#   FIRST..LAST row  [input, ]KERNEL parameters (choose/linear.h, choose/inputs.h)\n"
    "# Left out, see the launch table: x coded, bf16 parts, other caches, forms that only tiles "
    "take.\n"
    "# Written by ops_linear_choices_test with BT_WRITE=1.\n";

// Rows of a tensor of its own.
RowsFacts Rows(DType type, int64_t rows, int64_t width) {
  return {.type = type,
          .rows = rows,
          .width = width,
          .row_bytes = rows > 1 ? width * SizeOf(type) : 0,
          .alignment = AlignmentOf(nullptr, rows > 1 ? width * SizeOf(type) : 0)};
}

MatrixFacts Matrix(const FormCase& form, int64_t n, int64_t k) {
  return {.form = form.form, .quantise_input = form.quantise_input, .n = n, .k = k};
}

LinearQuestion QuestionOf(const LinearCase& c, int64_t rows) {
  RowsFacts x = Rows(DType::kBf16, rows, c.x_width);
  x.width = c.k;
  return {.x = x, .coded = c.coded, .w = Matrix(c.form, c.n, c.k), .out = Rows(c.out, rows, c.n)};
}

LinearPlan PlanOf(const LinearCase& c, const LinearQuestion& question, const Card& card) {
  if (c.norm_ahead) return ChooseLinearFromNorm(question, true, card);
  if (c.norm_behind) return ChooseLinearToNorm(question, true, card);
  return ChooseLinear(question, card);
}

ExpertInputsQuestion QuestionOf(const ExpertInputsCase& c, int64_t rows) {
  const Rank& r = c.rank;
  return {.x = Rows(DType::kBf16, rows, r.hidden),
          .norm = c.norm,
          .coded = c.coded,
          .gate_up = Matrix(c.form, 2 * r.shared, r.hidden),
          .shared = Rows(DType::kBf16, rows, 2 * r.shared),
          .router = Matrix(launch_table::kPlain, r.experts, r.hidden),
          .logits = Rows(DType::kF32, rows, r.experts)};
}

AttentionInputsQuestion QuestionOf(const AttentionInputsCase& c, int64_t rows) {
  const Rank& r = c.rank;
  AttentionInputsQuestion question{.qkv_a = Rows(DType::kBf16, rows, r.qkv_a()),
                                   .q_lora = r.q_lora,
                                   .latent = launch_table::kLatent,
                                   .rope = launch_table::kRope};
  if (r.q_lora == 0) return question;
  question.heads = r.heads;
  question.head_width = launch_table::kNope + launch_table::kRope;
  question.q = Rows(DType::kBf16, rows, r.head_width());
  question.q_weight = Matrix(c.form, r.head_width(), r.q_lora);
  return question;
}

RouterQuestion QuestionOf(const RouterCase& c, int64_t rows) {
  return {.x = Rows(DType::kBf16, rows, c.hidden),
          .w = Matrix(launch_table::kPlain, c.params.experts, c.hidden),
          .logits = Rows(DType::kF32, rows, c.params.experts)};
}

// The choice of experts behind the router's product, which is not chosen here.
Launch ChoiceBehind(const RouterCase& c, int64_t rows) {
  const bool by_warps = c.params.groups == 1;
  const unsigned warps = rows < 512 ? 1 : 4;
  if (!by_warps) {
    return {.name = "route:RouteKernel",
            .grid = {static_cast<unsigned>(rows), 1, 1},
            .block = {static_cast<unsigned>((c.params.experts + 31) / 32 * 32), 1, 1}};
  }
  return {.name = "route:RouteByWarpsKernel",
          .grid = {(static_cast<unsigned>(rows) + warps - 1) / warps, 1, 1},
          .block = {32 * warps, 1, 1}};
}

// For each number of rows the launches, as the table has them, or the plan as text.
class Asked {
 public:
  explicit Asked(bool launches) : launches_(launches) {}

  template <typename Answer>
  void Ask(const std::string& question, const RowRange& range, const Answer& answer) {
    if (!asked_.insert(question).second) return;
    table_.Add(question, Intervals(range, [&](int64_t rows, std::vector<Launch>& to) {
                 std::string text;
                 const bool taken = answer(rows, to, text);
                 if (!launches_) to = {{.name = text}};
                 return taken;
               }));
  }
  const Table& table() const { return table_; }

 private:
  bool launches_;
  std::set<std::string> asked_;
  Table table_;
};

// What the text leaves out, as it repeats the rest or is of no published checkpoint: forms that
// `tiles` or `plain` take alone, codes that are there, parts of a sum in bf16, other caches, the
// smallest model. The launch table has it all.
bool Repeats(const FormCase& form) {
  return form.form != WeightForm::kBf16 && !form.quantise_input;
}
bool Repeats(const LinearCase& c) {
  return Repeats(c.form) || c.coded || c.range.least > 1 || c.n == 256 || c.k <= 256;
}
bool Repeats(const ExpertInputsCase& c) {
  return Repeats(c.form) || c.coded || c.rank.hidden == 256;
}
bool Repeats(const AttentionInputsCase& c) {
  return Repeats(c.form) || c.cache.form != KvForm::kBf16 || c.rank.hidden == 256;
}

Table AskAll(bool launches) {
  Asked asked(launches);
  for (const LinearCase& c : launch_table::LinearCases()) {
    if (!launches && Repeats(c)) continue;
    asked.Ask(c.question, c.range, [&](int64_t rows, std::vector<Launch>& to, std::string& text) {
      const LinearQuestion question = QuestionOf(c, rows);
      const LinearPlan plan = PlanOf(c, question, kRecordedCard);
      to = LaunchesOf(question, plan);
      text = Text(plan);
      return plan.kernel != LinearKernel::kNone;
    });
  }
  const auto ask = [&](const auto& c, const RowRange& range, const auto& choose) {
    if (!launches && Repeats(c)) return;
    asked.Ask(c.question, range, [&](int64_t rows, std::vector<Launch>& to, std::string& text) {
      const auto question = QuestionOf(c, rows);
      const auto plan = choose(question, kRecordedCard);
      to = LaunchesOf(question, plan);
      text = Text(plan);
      return !to.empty();
    });
  };
  for (const ExpertInputsCase& c : launch_table::ExpertInputsCases()) {
    ask(c, c.range, ChooseExpertInputs);
  }
  for (const AttentionInputsCase& c : launch_table::AttentionInputsCases()) {
    ask(c, {}, ChooseAttentionInputs);
  }
  for (const RouterCase& c : launch_table::RouterCases()) {
    const std::string question = "router" + c.name + " by " + std::to_string(c.hidden);
    asked.Ask(question, {}, [&](int64_t rows, std::vector<Launch>& to, std::string& text) {
      const LinearPlan plan = ChooseRouter(QuestionOf(c, rows), kRecordedCard);
      to = LaunchesOf(QuestionOf(c, rows), plan);
      to.push_back(ChoiceBehind(c, rows));
      text = Text(plan);
      return true;
    });
  }
  return asked.table();
}

TEST(LinearChoicesTest, LaunchesAreThoseRecordedOnACard) {
  ExpectAsRecorded(AskAll(true), Recorded().Beginning({"linear, ", "expert inputs, ",
                                                       "attention inputs, ", "router of "}));
}

TEST(LinearChoicesTest, TheRecordedCardIsTheTables) {
  Table card;
  launch_table::TellCard(kRecordedCard, card);
  ExpectAsRecorded(card, Recorded().Beginning({"card, "}));
}

TEST(LinearChoicesTest, PlansAreThoseOfTheText) {
  ExpectAsInTheTree(AskAll(false), kChoices, kHeader);
}

// The shared experts with the router, and the queries, of one rank of eight; shapes that fill the
// card without sharing columns have no plan.
TEST(LinearChoicesTest, PlansOfHundredsOfRows) {
  struct Case {
    int64_t rows, k, n, second_n;
    Bf16Rows1024Plan plan;
  };
  for (const Case& c :
       {Case{129, 7168, 512, 384, {64, 4, 1}}, Case{256, 7168, 512, 384, {64, 4, 1}},
        Case{300, 7168, 512, 384, {96, 4, 1}}, Case{512, 7168, 512, 384, {128, 4, 2}},
        Case{900, 7168, 512, 384, {128, 2, 2}}, Case{1024, 7168, 512, 384, {128, 2, 2}},
        Case{96, 1536, 1536, 0, {64, 2, 1}}, Case{256, 1536, 1536, 0, {64, 2, 1}},
        Case{512, 1536, 1536, 0, {96, 2, 1}}, Case{100, 512, 1536, 0, {64, 1, 1}},
        Case{256, 1536, 12288, 0, {}}, Case{1024, 7168, 4096, 384, {}}}) {
    const Bf16Rows1024Plan plan =
        PlanBf16Rows1024({.rows = c.rows, .k = c.k, .n = c.n, .second_n = c.second_n});
    EXPECT_EQ(plan, c.plan) << c.rows << " rows by [" << c.n << " + " << c.second_n << "]";
  }
}

// Rows and tensors that kernels cannot read in vectors go other ways.
TEST(LinearChoicesTest, OddPlacesGoOtherWays) {
  const FormCase& bf16 = launch_table::kPlain;
  LinearQuestion question{.x = Rows(DType::kBf16, 4, 7168),
                          .w = Matrix(bf16, 2112, 7168),
                          .out = Rows(DType::kBf16, 4, 2112)};
  EXPECT_EQ(ChooseLinear(question, kRecordedCard).kernel, LinearKernel::kBf16Rows16);
  question.x.alignment = 2;
  EXPECT_EQ(ChooseLinear(question, kRecordedCard).kernel, LinearKernel::kBlas);
  question.has_blas = false;
  EXPECT_EQ(ChooseLinear(question, kRecordedCard).kernel, LinearKernel::kPlain);

  question.w = Matrix({"", WeightForm::kFp8Block, true}, 2112, 7168);
  question.x = Rows(DType::kBf16, 300, 7168);
  question.out = Rows(DType::kBf16, 300, 2112);
  EXPECT_TRUE(ChooseLinear(question, kRecordedCard).as<Fp8TilesPlan>().pairs);
  question.coded = true;
  question.codes_aligned = false;
  EXPECT_FALSE(ChooseLinear(question, kRecordedCard).as<Fp8TilesPlan>().pairs);
  question.out.alignment = 4;
  EXPECT_EQ(ChooseLinear(question, kRecordedCard).kernel, LinearKernel::kTiles);
}

// Of few rows each block makes what it multiplies; of more it is made ahead, in the form that the
// product reads.
TEST(LinearChoicesTest, GateAndUpAreMadeWhereTheProductWantsThem) {
  const auto text = [](const FormCase& form, int64_t rows) {
    return Text(ChooseGatedLinear({.x = Rows(DType::kBf16, rows, 512),
                                   .input = LinearInput::kGateUp,
                                   .w = Matrix(form, 7168, 256),
                                   .out = Rows(DType::kF32, rows, 7168)},
                                  kRecordedCard));
  };
  const FormCase coded{"", WeightForm::kFp8Block, true};
  EXPECT_EQ(text(coded, 16), "gated in fp8_rows16 7 strips tall");
  EXPECT_EQ(text(coded, 17), "gated to codes, fp8_rows256 64/1");
  EXPECT_EQ(text(launch_table::kPlain, 16), "gated; bf16_rows16 7 strips tall");
}

// What can be asked for is no narrower than what is chosen, and is the same plan.
TEST(LinearChoicesTest, TheChosenKernelCanBeAskedFor) {
  for (const LinearCase& c : launch_table::LinearCases()) {
    if (c.norm_ahead || c.norm_behind) continue;
    for (const int64_t rows : {1, 8, 9, 16, 17, 33, 64, 65, 128, 129, 256, 300, 8192}) {
      if (rows > c.range.most || rows < c.range.least) continue;
      const LinearQuestion question = QuestionOf(c, rows);
      const LinearPlan chosen = ChooseLinear(question, kRecordedCard);
      const LinearPlan plan = LinearBy(question, chosen.kernel, kRecordedCard);
      EXPECT_EQ(Text(plan), Text(chosen)) << c.question << " " << rows;
    }
  }
}

// Any other has a whole plan too, or says why not.
TEST(LinearChoicesTest, EveryKernelThatIsAskedForHasAPlanOrAReason) {
  std::set<std::string> planned;
  for (const LinearCase& c : launch_table::LinearCases()) {
    if (c.norm_ahead || c.norm_behind) continue;
    for (const int64_t rows : {1, 9, 17, 64, 65, 128, 300, 1024, 8192}) {
      const LinearQuestion question = QuestionOf(c, rows);
      for (auto at = LinearKernel::kNone; at <= LinearKernel::kPlain;
           at = static_cast<LinearKernel>(static_cast<int>(at) + 1)) {
        const LinearPlan plan = LinearBy(question, at, kRecordedCard);
        const std::string what = c.question + " " + NameOf(at) + " " + std::to_string(rows);
        ASSERT_NE(std::string(plan.why), "") << what;
        if (plan.kernel == LinearKernel::kNone) continue;
        EXPECT_EQ(plan.kernel, at) << what;
        planned.insert(NameOf(at));
        if (at == LinearKernel::kBlas) continue;
        EXPECT_FALSE(LaunchesOf(question, plan).empty()) << what;
        if (at != LinearKernel::kBf16Rows128) continue;
        EXPECT_GT(plan.as<Bf16Rows128Plan>().stages, 0) << what;
        EXPECT_GT(plan.as<Bf16Rows128Plan>().inputs, 0) << what;
      }
    }
  }
  EXPECT_EQ(planned.size(), 9u);
}

// Rooms for clusters that differ are heeded: of a card that has none left one block is enough.
TEST(LinearChoicesTest, PlansFollowTheCard) {
  const Rank rank = launch_table::Ranks().front();
  const MatrixFacts w = Matrix({"", WeightForm::kFp8Block, true}, rank.qkv_a(), rank.hidden);
  const RowsFacts out = Rows(DType::kBf16, 64, w.n);
  ASSERT_TRUE(PlanFp8Rows256(w, out, kRecordedCard).has_value());
  Card narrow = kRecordedCard;
  narrow.clusters = {};
  EXPECT_FALSE(PlanFp8Rows256(w, out, narrow).has_value());
}

}  // namespace
}  // namespace baltoro::cuda
