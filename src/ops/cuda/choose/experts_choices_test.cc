// The choice of expert banks: against what was recorded on a card (launch_table/), against the
// text beside this file, and where others have blocks on the card.
//
// BT_WRITE=1 writes the text anew.

#include "ops/cuda/choose/experts.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "ops/cuda/choose/choice_test_support.h"
#include "ops/cuda/choose/experts_launches.h"
#include "ops/cuda/launch_table/questions_experts.h"

namespace baltoro::cuda {
namespace {

using launch_table::BankCase;
using launch_table::Table;

constexpr int64_t kRoundedPartRowsMin = 257;
constexpr char kTextPath[] = BT_CHOICES "/experts_choices.txt";
constexpr char kHeader[] =
    "# Which way of an expert bank is chosen, for FIRST..LAST tokens: held by "
    "experts_choices_test, which\n"
    "# writes it anew with BT_WRITE=1.\n"
    "# A question: FORM SLOTS of EXPERTS top K [I of an expert, hidden], what is beside, the "
    "shared "
    "experts' I.\n"
    "# chooses: the bank is asked to choose; not taken: it refuses, and a launch ahead chooses.\n";

RowsFacts Rows(DType type, int64_t rows, int64_t width) {
  return FactsOf(TensorView(nullptr, type, {rows, width}));
}

MatrixFacts Matrix(const launch_table::BankCase& one, bool shared, int64_t n, int64_t k) {
  const product_test::FormCase& form = shared ? one.shared_form : one.form;
  return {.form = form.form,
          .quantise_input = form.quantise_input,
          .n = n,
          .k = k,
          .count = shared ? 1 : one.rank.slots};
}

ExpertsQuestion QuestionOf(const BankCase& one, int64_t rows) {
  const launch_table::Rank& r = one.rank;
  ExpertsQuestion q;
  q.x = Rows(DType::kBf16, rows, r.hidden);
  q.out = Rows(one.beside.parts ? DType::kBf16 : DType::kF32, rows, r.hidden);
  q.top_k = r.top_k;
  q.gate_up = Matrix(one, false, 2 * r.expert, r.hidden);
  q.down = Matrix(one, false, r.hidden, r.expert);
  if (one.beside.shared) {
    q.shared = Rows(DType::kBf16, rows, 2 * r.shared);
    q.shared_down = Matrix(one, true, r.hidden, r.shared);
  }
  if (one.beside.chooses) {
    q.choice = {.logits = Rows(DType::kF32, rows, r.experts),
                .params = {.experts = r.experts, .top_k = r.top_k}};
  }
  q.norm = one.beside.norm;
  // Codes are read in whole words of four scales.
  q.x_coded = one.beside.coded && r.hidden % 512 == 0;
  q.x_ordered = one.beside.ordered;
  return q;
}

bool IsTaken(const BankCase& one, const ExpertsPlan& plan) {
  return (!one.beside.norm || plan.norm) &&
         (!one.beside.chooses || plan.chooser != ExpertsChooser::kGiven) &&
         (!one.beside.ordered || plan.reads_ordered);
}

void ForEach(const std::function<void(const BankCase&)>& with) {
  std::set<std::string> seen;
  for (const BankCase& one : launch_table::BankCases(kRoundedPartRowsMin)) {
    if (seen.insert(one.question).second) with(one);
  }
}

TEST(ExpertsChoiceTest, LaunchesAreThoseRecordedOnACard) {
  const Table table = choice_test::Recorded().Containing("experts, ");
  int64_t asked = 0, wrong = 0;
  ForEach([&](const BankCase& one) {
    const std::vector<std::string>* const lines = table.AnswerOf(one.question);
    ASSERT_NE(lines, nullptr) << one.question;
    const std::vector<RecordedLaunches> recorded = ParseAnswer(*lines);
    std::set<int64_t> rows;
    for (const int64_t at : launch_table::RowsAsked(one.range)) rows.insert(at);
    for (const RecordedLaunches& part : recorded) rows.insert({part.first, part.last});
    for (const int64_t at : rows) {
      const ExpertsQuestion q = QuestionOf(one, at);
      const ExpertsPlan plan = ChooseExperts(q);
      ++asked;
      const bool taken = IsTaken(one, plan);
      const std::string difference =
          DifferenceFrom(recorded, at, taken ? LaunchesOf(q, plan) : NotTaken());
      if (difference.empty()) continue;
      if (++wrong <= 20) {
        ADD_FAILURE() << one.question << ", " << at << " rows: " << Text(plan) << "\n"
                      << difference;
      }
    }
  });
  EXPECT_GT(asked, 300000);
  EXPECT_EQ(wrong, 0);
}

// The text has every question of the family; what grows with the rows is no part of it.
TEST(ExpertsChoiceTest, ChoicesAreThoseOfTheText) {
  Table table;
  ForEach([&](const BankCase& one) {
    const auto ask = [&](int64_t rows, std::vector<launch_table::Launch>& launches) {
      const ExpertsPlan plan = ChooseExperts(QuestionOf(one, rows));
      launches.push_back({.name = Text(plan)});
      return IsTaken(one, plan);
    };
    table.Add(one.question.substr(9), launch_table::Intervals(one.range, ask));
  });
  choice_test::ExpectAsInTheTree(table, kTextPath, kHeader);
}

// Rows of replicas that came as codes: a kernel that would read the rows themselves is not chosen.
TEST(ExpertsChoiceTest, CodesAloneAreReadAsCodes) {
  int64_t entries = 0, others = 0;
  ForEach([&](const BankCase& one) {
    if (!one.form.quantise_input || one.beside.chooses) return;
    for (const int64_t rows : {1, 3}) {
      ExpertsQuestion q = QuestionOf(one, rows);
      const ExpertsKernel plain = ChooseExperts(q).kernel;
      if (plain != ExpertsKernel::kFp8Entries4) continue;
      q.codes_alone = true;
      q.x_coded = true;
      EXPECT_EQ(ChooseExperts(q).kernel, plain) << one.question;
      ++entries;
      q.x_coded = false;
      EXPECT_NE(ChooseExperts(q).kernel, plain) << one.question;
      ++others;
    }
  });
  EXPECT_GT(entries, 0);
  EXPECT_EQ(others, entries);
}

TEST(ExpertsChoiceTest, QuestionsOfDifferentTextsAloneHaveDifferentPlans) {
  std::map<std::string, std::string> plans;
  ForEach([&](const BankCase& one) {
    for (const int64_t rows : {1, 3, 40, 300, 5000}) {
      const ExpertsQuestion q = QuestionOf(one, rows);
      const std::string plan = Text(ChooseExperts(q));
      EXPECT_EQ(plans.emplace(Text(q), plan).first->second, plan) << Text(q);
      ExpertsQuestion shared = q;
      shared.card.owned = false;
      EXPECT_NE(Text(shared), Text(q));
    }
  });
  EXPECT_GT(plans.size(), 1000u);
}

// Blocks that wait for each other need the whole card.
bool IsOneLaunch(ExpertsKernel kernel) {
  return std::string(NameOf(kernel)).find("_one_launch") != std::string::npos;
}

TEST(ExpertsChoiceTest, OthersOnTheCardKeepBlocksFromWaitingForEachOther) {
  std::set<std::string> with, without;
  ForEach([&](const BankCase& one) {
    for (const int64_t rows : {1, 2, 4, 8, 300, 400, 1000, 3000}) {
      if (rows > one.range.most || rows < one.range.least) continue;
      ExpertsQuestion q = QuestionOf(one, rows);
      with.insert(NameOf(ChooseExperts(q).kernel));
      q.card.owned = false;
      const ExpertsPlan plan = ChooseExperts(q);
      without.insert(NameOf(plan.kernel));
      EXPECT_FALSE(IsOneLaunch(plan.kernel)) << one.question << " " << rows;
      EXPECT_EQ(plan.parts, 0) << one.question << " " << rows;
    }
  });
  for (const char* const waits :
       {"int4_one_launch1", "int4_one_launch4", "int4_grouped_sum", "fp8_one_launch1",
        "fp8_one_launch4", "fp8_one_launch8", "fp8_grouped_sum"}) {
    EXPECT_EQ(with.count(waits), 1u) << waits;
    EXPECT_EQ(without.count(waits), 0u) << waits;
  }
  for (const char* const instead : {"int4_one_token", "int4_entries", "int4_digits", "int4_grouped",
                                    "fp8_entries4", "fp8_streaming", "fp8_grouped128"}) {
    EXPECT_EQ(without.count(instead), 1u) << instead;
  }
}

// A smaller card has no room for a block of each.
TEST(ExpertsChoiceTest, ASmallCardHasNoBankInOneLaunch) {
  ForEach([&](const BankCase& one) {
    if (one.range.least > 1) return;
    ExpertsQuestion q = QuestionOf(one, 2);
    q.card.multiprocessors = 127;
    EXPECT_FALSE(IsOneLaunch(ChooseExperts(q).kernel)) << one.question;
  });
}

// What can be asked for is no narrower than what is chosen; and there is always something else.
TEST(ExpertsChoiceTest, TheChosenWayTakesItsQuestion) {
  ForEach([&](const BankCase& one) {
    for (const int64_t rows : {1, 2, 4, 8, 40, 300, 1000, 5000}) {
      if (rows > one.range.most || rows < one.range.least) continue;
      const ExpertsQuestion q = QuestionOf(one, rows);
      const char* const against = ExpertsAgainst(q, ChooseExperts(q).kernel);
      EXPECT_STREQ(against, nullptr) << one.question << " " << rows;
      EXPECT_STRNE(ExpertsAgainst(q, ExpertsKernel::kNone), nullptr);
    }
  });
}

// Any way that takes a question has a whole plan.
TEST(ExpertsChoiceTest, EveryWayThatTakesAQuestionHasAPlan) {
  std::set<std::string> planned;
  ForEach([&](const BankCase& one) {
    for (const int64_t rows : {1, 4, 8, 40, 300, 8192}) {
      if (rows > one.range.most || rows < one.range.least) continue;
      const ExpertsQuestion q = QuestionOf(one, rows);
      for (auto at = ExpertsKernel::kInt4OneLaunch1; at <= ExpertsKernel::kGroupedProducts;
           at = static_cast<ExpertsKernel>(static_cast<int>(at) + 1)) {
        if (ExpertsAgainst(q, at) != nullptr) continue;
        const ExpertsPlan plan = ExpertsBy(q, at);
        const bool sums =
            at == ExpertsKernel::kInt4GroupedSum || at == ExpertsKernel::kFp8GroupedSum;
        EXPECT_EQ(plan.parts > 0, sums) << one.question << " " << NameOf(at) << " " << rows;
        EXPECT_FALSE(LaunchesOf(q, plan).empty()) << one.question << " " << NameOf(at);
        planned.insert(NameOf(at));
      }
    }
  });
  EXPECT_EQ(planned.size(), 16u);
}

TEST(ExpertsChoiceTest, AWayCanBeAskedFor) {
  ForEach([&](const BankCase& one) {
    const ExpertsQuestion q = QuestionOf(one, one.range.least);
    const ExpertsPlan plan = ChooseExperts(q);
    EXPECT_EQ(Text(ExpertsBy(q, plan.kernel)), Text(plan)) << one.question;
  });
  ExpertsQuestion q;
  q.x = q.out = Rows(DType::kBf16, 12001, 7168);
  q.top_k = 8;
  q.gate_up = {.form = WeightForm::kInt4Group, .n = 512, .k = 7168, .count = 384};
  q.down = {.form = WeightForm::kInt4Group, .n = 7168, .k = 256, .count = 384};
  const ExpertsPlan sums = ExpertsBy(q, ExpertsKernel::kInt4GroupedSum);
  EXPECT_EQ((sums.parts - 1) * sums.part.tokens + sums.last_part.tokens, 12001);
  EXPECT_LE(sums.last_part.tokens, sums.part.tokens);
  EXPECT_EQ(ExpertsBy(q, ExpertsKernel::kInt4Grouped).tile_rows, 112);
  // Shared experts that the streaming ways have in their sum are apart of the others.
  q.x = Rows(DType::kBf16, 12, 7168);
  q.out = Rows(DType::kF32, 12, 7168);
  q.shared = Rows(DType::kBf16, 12, 512);
  q.shared_down = {.form = WeightForm::kBf16, .n = 7168, .k = 256};
  EXPECT_EQ(ExpertsBy(q, ExpertsKernel::kInt4Digits).shared, SharedExperts::kInBank);
  for (const ExpertsKernel kernel : {ExpertsKernel::kInt4Grouped, ExpertsKernel::kInt4GroupedSum,
                                     ExpertsKernel::kGroupedProducts}) {
    EXPECT_EQ(ExpertsBy(q, kernel).shared, SharedExperts::kOwnProduct) << NameOf(kernel);
  }
}

}  // namespace
}  // namespace baltoro::cuda
