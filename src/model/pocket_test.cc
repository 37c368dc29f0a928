// The pocket model, as it lies in the repository: it loads, and says what transformers says
// (tools/record_pocket_golden.py), on every instruction set of this machine.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "ops/thread_pool.h"
#include "support/chosen_experts.h"
#include "support/isas.h"
#include "support/pocket_answers.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

using test::AnswerLogits;
using test::Best;
using test::PocketAnswer;

// A sanitizer makes the arithmetic ten times slower and looks for other things.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kEachPrompt = 10;
#else
constexpr size_t kEachPrompt = 1;
#endif

class PocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::HasPocketWeights()) GTEST_SKIP() << test::kPocketModel << " has no weights";
    config_ = K2Config::Read(test::kPocketModel).value();
  }
  std::unique_ptr<K2Model> Load(const OpsTable& ops) { return test::LoadPocketModel(ops, &pool_); }

  K2Config config_;
  ThreadPool pool_{1};  // tests run side by side
};

// On one instruction set. All prompts take a minute, so the instruction sets that the machine would
// not choose itself see every fourth, up to the end of the turn.
class PocketIsaTest : public PocketTest, public ::testing::WithParamInterface<cpu::Isa> {
 protected:
  bool is_own_choice() const { return GetParam() == cpu::FastestIsa(); }
  size_t each() const { return is_own_choice() ? kEachPrompt : 4 * kEachPrompt; }
  PocketAnswer UntilEndOfTurn(PocketAnswer recorded) const {
    const auto stop = std::ranges::find(recorded.answer, config_.stop_tokens[0]);
    if (stop != recorded.answer.end()) recorded.answer.erase(stop + 1, recorded.answer.end());
    recorded.tokens.resize(recorded.prompt_length + recorded.answer.size() - 1);
    return recorded;
  }

 private:
  test::ForcedIsa forced_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Isas,
                         PocketIsaTest,
                         ::testing::ValuesIn(test::SupportedIsas()),
                         [](const auto& instance) {
                           return std::string(cpu::NameOf(instance.param));
                         });

TEST_F(PocketTest, ItIsWhatItsConfigurationSays) {
  const auto model = Load(CpuOps(DType::kBf16));

  EXPECT_EQ(config_.model_type, "kimi_k25");
  EXPECT_EQ(config_.cache_width(), 576);
  EXPECT_EQ(config_.stop_tokens, (std::vector<int32_t>{2050}));
  EXPECT_LT(model->weight_bytes(), 40 << 20);
}

// At each step the model, given the recorded answer so far, must choose as transformers did; in
// bf16 but for ties (ChoiceCounter).
TEST_P(PocketIsaTest, GreedyChoicesAreThoseOfTransformers) {
  const std::vector<PocketAnswer> golden = test::ReadPocketAnswers();
  if (golden.empty()) GTEST_SKIP() << "there is no recording";
  const auto exact = Load(test::NotingFloat32Ops());
  const auto rounded = Load(CpuOps(DType::kBf16));
  const auto following = Load(test::FollowingBf16Ops());
  test::ChoiceCounter counter(config_.vocab, config_.stop_tokens[0]);

  for (size_t at = 0; at < golden.size(); at += each()) {
    const PocketAnswer recorded = is_own_choice() ? golden[at] : UntilEndOfTurn(golden[at]);
    test::ForgetExperts();
    test::RewindExperts();
    const std::vector<float> in_float32 = AnswerLogits(*exact, recorded);
    for (size_t i = 0; i < recorded.answer.size(); ++i) {
      EXPECT_EQ(Best(test::RowOf(in_float32, i, config_.vocab)), recorded.answer[i])
          << recorded.id << " step " << i;
    }
    counter.Add(recorded, AnswerLogits(*rounded, recorded),
                [&] { return AnswerLogits(*following, recorded); });
  }
  counter.Finish("in bf16");
}

// Up to the end of the turn, each step given the recorded answer so far.
TEST_P(PocketIsaTest, AnEightBitCacheKeepsMostAnswers) {
  const std::vector<PocketAnswer> golden = test::ReadPocketAnswers();
  if (golden.empty()) GTEST_SKIP() << "there is no recording";
  const auto model = Load(CpuOps(DType::kBf16));
  constexpr KvForm kForms[] = {KvForm::kBf16, KvForm::kFp8, KvForm::kFp8Groups};
  int answers = 0, steps = 0;
  int whole[3] = {}, chosen[3] = {};
  std::set<std::vector<float>> different;

  for (size_t at = 0; at < golden.size(); at += 4 * each(), ++answers) {
    const PocketAnswer recorded = UntilEndOfTurn(golden[at]);
    const size_t end = recorded.answer.size();
    steps += static_cast<int>(end);
    for (size_t form = 0; form < 3; ++form) {
      const std::vector<float> logits = AnswerLogits(*model, recorded, kForms[form]);
      int same = 0;
      for (size_t i = 0; i < end; ++i)
        same += Best(test::RowOf(logits, i, config_.vocab)) == recorded.answer[i] ? 1 : 0;
      chosen[form] += same;
      whole[form] += same == static_cast<int>(end) ? 1 : 0;
      if (at == 0) different.insert(logits);
    }
  }

  EXPECT_EQ(different.size(), 3u);  // the forms are really different
  for (size_t form = 0; form < 3; ++form) {
    fmt::print("{}: {} of {} answers, {} of {} tokens as float32 chooses\n",
               KvFormName(kForms[form]), whole[form], answers, chosen[form], steps);
    EXPECT_GE(whole[form] * 10, answers * 9);
    EXPECT_GE(chosen[form] * 100, steps * 99);
  }
}

TEST_P(PocketIsaTest, TokenByTokenItChoosesTheSame) {
  const auto model = Load(CpuOps(DType::kBf16));
  const std::vector<int32_t> prompt = {2048, 2051, 300, 400, 500, 2050, 2052};
  test::TinyRunner runner(*model, 64);
  const auto vocab = static_cast<size_t>(config_.vocab);
  std::vector<float> logits = runner.Run(prompt, 7);
  std::vector<int32_t> tokens = prompt;
  while (tokens.size() < 40) {
    tokens.push_back(static_cast<int32_t>(Best(std::span(logits).last(vocab))));
    logits = runner.Run(std::span(tokens).last(1), 7);
  }

  const std::vector<float> whole = test::TinyRunner(*model, 64).Run(tokens, 7);

  EXPECT_EQ(std::vector<float>(whole.end() - static_cast<int64_t>(vocab), whole.end()), logits);
}

}  // namespace
}  // namespace baltoro
