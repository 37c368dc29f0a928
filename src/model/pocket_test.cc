// The pocket model, as it lies in the repository: it loads, and says what transformers says
// (tools/record_pocket_golden.py).

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "base/file.h"
#include "ops/thread_pool.h"
#include "support/chosen_experts.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

constexpr char kModel[] = "pocket/model";
constexpr char kGolden[] = "tests/golden/pocket_greedy.json.gz";
// A sanitizer makes the arithmetic ten times slower and looks for other things.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kEachPrompt = 10;
#else
constexpr size_t kEachPrompt = 1;
#endif

bool HasWeights() {
  return FileExists(std::string(kModel) + "/model.safetensors.index.json") ||
         FileExists(std::string(kModel) + "/model.safetensors");
}

// The contents of a .gz file, through the system's gzip.
std::string Unzipped(const std::string& path) {
  FILE* pipe = popen(("gzip -dc " + path).c_str(), "r");
  std::string text;
  char piece[65536];
  size_t got = 0;
  while ((got = fread(piece, 1, sizeof(piece), pipe)) > 0) text.append(piece, got);
  EXPECT_EQ(pclose(pipe), 0);
  return text;
}

// The distance between neighbouring bf16 numbers of this size.
double Bf16Spacing(float x) {
  return std::exp2(std::floor(std::log2(std::abs(x))) - 7);
}

int64_t Best(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// One prompt of the recording: what transformers answered in float32, and how far its best logit
// lay above its second at each step.
struct Recorded {
  explicit Recorded(const Json& json)
      : id(json["id"].get<std::string>()),
        tokens(json["ids"].get<std::vector<int32_t>>()),
        prompt_length(static_cast<int32_t>(tokens.size())),
        answer(json["float32"]["tokens"].get<std::vector<int32_t>>()),
        gaps(json["float32"]["gap"].get<std::vector<double>>()) {
    tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
  }
  std::string id;
  std::vector<int32_t> tokens;  // the prompt and all but the last of the answer
  int32_t prompt_length;
  std::vector<int32_t> answer;
  std::vector<double> gaps;
};

class PocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasWeights()) GTEST_SKIP() << kModel << " has no weights";
    config_ = K2Config::Read(kModel).value();
  }
  std::unique_ptr<K2Model> Load(const OpsTable& ops) {
    K2LoadOptions options;
    options.positions_max = 8192;
    auto model = K2Model::Load(config_, kModel, ops, &pool_, options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
  // Logits of each step of the answer, as serving computes them: the prompt in the expanded form,
  // the answer in the absorbed one.
  std::vector<float> AnswerLogits(K2Model& model, const Recorded& recorded) {
    return AnswerLogits(model, recorded, PlainKvForm(model.ops().act));
  }
  std::vector<float> AnswerLogits(K2Model& model, const Recorded& recorded, KvForm kv) {
    test::TinyRunner runner(model, std::ssize(recorded.tokens), kv);
    const std::vector<float> all = runner.Run(recorded.tokens, recorded.prompt_length);
    return {all.begin() + (recorded.prompt_length - 1) * config_.vocab, all.end()};
  }
  std::span<const float> Step(const std::vector<float>& logits, size_t i) {
    const auto vocab = static_cast<size_t>(config_.vocab);
    return std::span(logits).subspan(i * vocab, vocab);
  }

  K2Config config_;
  ThreadPool pool_{1};  // tests run side by side
};

TEST_F(PocketTest, ItIsWhatItsConfigurationSays) {
  const auto model = Load(CpuOps(DType::kBf16));

  EXPECT_EQ(config_.model_type, "kimi_k25");
  EXPECT_EQ(config_.cache_width(), 576);
  EXPECT_EQ(config_.stop_tokens, (std::vector<int32_t>{2050}));
  EXPECT_LT(model->weight_bytes(), 40 << 20);
}

// At each step the model, given the recorded answer so far, must choose as transformers did. In
// bf16 it may choose otherwise at a tie: where the two best of the reference lie within two
// spacings of bf16 numbers of that size, or where a tie between two experts was tipped, which is so
// if it chooses right with the experts of float32. Each is printed.
TEST_F(PocketTest, GreedyChoicesAreThoseOfTransformers) {
  if (!FileExists(kGolden)) GTEST_SKIP() << kGolden << " is not there";
  const Json golden = ParseJson(Unzipped(kGolden), {.depth = 64, .nodes = 5'000'000}).value();
  ASSERT_GE(golden["prompts"].size(), 200u);
  const auto exact = Load(test::NotingFloat32Ops());
  const auto rounded = Load(CpuOps(DType::kBf16));
  const auto following = Load(test::FollowingBf16Ops());
  const int32_t stop = config_.stop_tokens[0];
  int steps = 0, token_ties = 0, expert_ties = 0;

  for (size_t at = 0; at < golden["prompts"].size(); at += kEachPrompt) {
    const Recorded recorded(golden["prompts"][at]);
    test::ForgetExperts();
    test::RewindExperts();
    const std::vector<float> in_float32 = AnswerLogits(*exact, recorded);
    const std::vector<float> in_bf16 = AnswerLogits(*rounded, recorded);
    std::vector<float> with_same_experts;  // computed where it is needed
    for (size_t i = 0; i < recorded.answer.size(); ++i, ++steps) {
      const int32_t want = recorded.answer[i];
      const auto row = Step(in_bf16, i);
      const double tie = 3 * Bf16Spacing(row[want]);
      EXPECT_EQ(Best(Step(in_float32, i)), want) << recorded.id << " step " << i;
      const int64_t chosen = Best(row);
      if (chosen == want) continue;

      const bool by_token = recorded.gaps[i] <= tie;
      ++(by_token ? token_ties : expert_ties);
      if (!by_token) {
        if (with_same_experts.empty()) with_same_experts = AnswerLogits(*following, recorded);
        EXPECT_EQ(Best(Step(with_same_experts, i)), want) << recorded.id << " step " << i;
      }
      const auto here = recorded.answer.begin() + static_cast<int64_t>(i);
      const bool ended = std::find(recorded.answer.begin(), here, stop) != here;
      fmt::print("{} step {}{}: {} instead of {}, a tie of {} (gap {:.4f})\n", recorded.id, i,
                 ended ? ", after the end of the turn" : "", chosen, want,
                 by_token ? "tokens" : "experts", recorded.gaps[i]);
    }
  }
  fmt::print("{} choices: float32 all equal; bf16 {} ties of tokens, {} of experts\n", steps,
             token_ties, expert_ties);
  EXPECT_LE(token_ties + expert_ties, std::max(2, steps / 500));
}

// Up to the end of the turn, each step given the recorded answer so far.
TEST_F(PocketTest, AnEightBitCacheKeepsMostAnswers) {
  if (!FileExists(kGolden)) GTEST_SKIP() << kGolden << " is not there";
  const Json golden = ParseJson(Unzipped(kGolden), {.depth = 64, .nodes = 5'000'000}).value();
  const auto model = Load(CpuOps(DType::kBf16));
  constexpr KvForm kForms[] = {KvForm::kBf16, KvForm::kFp8, KvForm::kFp8Groups};
  int answers = 0, steps = 0;
  int whole[3] = {}, chosen[3] = {};
  std::set<std::vector<float>> different;

  for (size_t at = 0; at < golden["prompts"].size(); at += 4 * kEachPrompt, ++answers) {
    const Recorded recorded(golden["prompts"][at]);
    const auto stop = std::ranges::find(recorded.answer, config_.stop_tokens[0]);
    const auto end = static_cast<size_t>(stop - recorded.answer.begin());
    steps += static_cast<int>(end);
    for (size_t form = 0; form < 3; ++form) {
      const std::vector<float> logits = AnswerLogits(*model, recorded, kForms[form]);
      int same = 0;
      for (size_t i = 0; i < end; ++i) same += Best(Step(logits, i)) == recorded.answer[i] ? 1 : 0;
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

TEST_F(PocketTest, TokenByTokenItChoosesTheSame) {
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
