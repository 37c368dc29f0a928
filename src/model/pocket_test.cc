// The pocket model, as it lies in the repository: it loads, and says what transformers says
// (tools/record_pocket_golden.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/file.h"
#include "ops/thread_pool.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

constexpr char kModel[] = "pocket/model";
constexpr char kGolden[] = "tests/golden/pocket_greedy.json.gz";

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

// Where the spacing of bf16 numbers around x begins to hide differences.
float Bf16Spacing(float x) {
  return std::exp2(std::floor(std::log2(std::abs(x))) - 7);
}

int64_t Best(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

class PocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasWeights()) GTEST_SKIP() << kModel << " has no weights";
    config_ = K2Config::Read(kModel).value();
  }
  std::unique_ptr<K2Model> Load(DType act) {
    K2LoadOptions options;
    options.positions_max = 8192;
    auto model = K2Model::Load(config_, kModel, CpuOps(act), &pool_, options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }

  struct Ties {
    int steps = 0, exact = 0, ties = 0;
  };
  // Gives the model each prompt and the reference's continuation, as serving would compute them
  // (the prompt expanded, the continuation absorbed, token by token), and compares its choice at
  // each step. Where the choices differ the reference's two best must be a tie.
  Ties CompareChoices(K2Model& model, const Json& prompts, const char* kind, double spacings);

  K2Config config_;
  ThreadPool pool_{2};
};

PocketTest::Ties PocketTest::CompareChoices(K2Model& model,
                                            const Json& prompts,
                                            const char* kind,
                                            double spacings) {
  Ties ties;
  const auto vocab = static_cast<size_t>(config_.vocab);
  for (const Json& prompt : prompts) {
    auto tokens = prompt["ids"].get<std::vector<int32_t>>();
    const auto prompt_length = static_cast<int32_t>(tokens.size());
    const auto expected = prompt[kind]["tokens"].get<std::vector<int32_t>>();
    tokens.insert(tokens.end(), expected.begin(), expected.end() - 1);

    test::TinyRunner runner(model, std::ssize(tokens));
    const std::vector<float> logits = runner.Run(tokens, prompt_length);
    for (size_t i = 0; i < expected.size(); ++i, ++ties.steps) {
      const auto row = std::span(logits).subspan((prompt_length - 1 + i) * vocab, vocab);
      const int64_t chosen = Best(row);
      if (chosen == expected[i]) {
        ++ties.exact;
        continue;
      }
      const auto gap = prompt[kind]["gap"][i].get<double>();
      const double allowed = spacings * double{Bf16Spacing(row[chosen])};
      EXPECT_LE(gap, allowed) << prompt["id"] << " step " << i;
      std::printf(
          "%s: prompt %s step %zu: %ld instead of %d, the reference's gap is %.4f (a tie "
          "ends at %.4f)\n",
          kind, prompt["id"].get<std::string>().c_str(), i, chosen, expected[i], gap, allowed);
      ++ties.ties;
    }
  }
  std::printf("%s: %d of %d choices equal, %d ties\n", kind, ties.exact, ties.steps, ties.ties);
  return ties;
}

TEST_F(PocketTest, ItIsWhatItsConfigurationSays) {
  const auto model = Load(DType::kBf16);

  EXPECT_EQ(config_.model_type, "kimi_k25");
  EXPECT_EQ(config_.cache_width(), 576);
  EXPECT_EQ(config_.stop_tokens, (std::vector<int32_t>{2050}));
  EXPECT_LT(model->weight_bytes(), 40 << 20);
}

TEST_F(PocketTest, GreedyChoicesAreThoseOfTransformers) {
  if (!FileExists(kGolden)) GTEST_SKIP() << kGolden << " is not there";
  const Json golden = ParseJson(Unzipped(kGolden), {.depth = 64, .nodes = 5'000'000}).value();
  ASSERT_GE(golden["prompts"].size(), 200u);

  const Ties exact = CompareChoices(*Load(DType::kF32), golden["prompts"], "float32", 0.01);
  const Ties rounded = CompareChoices(*Load(DType::kBf16), golden["prompts"], "float32", 1);

  EXPECT_LE(exact.ties, exact.steps / 1000);
  EXPECT_LE(rounded.ties, rounded.steps / 100);
}

TEST_F(PocketTest, TokenByTokenItChoosesTheSame) {
  const auto model = Load(DType::kBf16);
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
