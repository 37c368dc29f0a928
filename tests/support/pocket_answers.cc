#include "support/pocket_answers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/file.h"
#include "base/gzip.h"
#include "base/json.h"
#include "support/tiny_model.h"

namespace baltoro::test {
namespace {

constexpr char kGolden[] = "tests/golden/pocket_greedy.json.gz";

// The distance between neighbouring bf16 numbers of this size.
double Bf16Spacing(float x) {
  return std::exp2(std::floor(std::log2(std::abs(x))) - 7);
}

}  // namespace

bool HasPocketWeights() {
  return FileExists(std::string(kPocketModel) + "/model.safetensors.index.json") ||
         FileExists(std::string(kPocketModel) + "/model.safetensors");
}

std::vector<PocketAnswer> ReadPocketAnswers() {
  std::vector<PocketAnswer> answers;
  if (!FileExists(kGolden)) return answers;
  const Json golden =
      ParseJson(ReadPlainOrGzip(kGolden).value(), {.depth = 64, .nodes = 5'000'000}).value();
  for (const Json& prompt : golden["prompts"]) {
    PocketAnswer one;
    one.id = prompt["id"].get<std::string>();
    one.tokens = prompt["ids"].get<std::vector<int32_t>>();
    one.prompt_length = static_cast<int32_t>(one.tokens.size());
    one.answer = prompt["float32"]["tokens"].get<std::vector<int32_t>>();
    one.gaps = prompt["float32"]["gap"].get<std::vector<double>>();
    const auto rounded = prompt["bfloat16"]["tokens"].get<std::vector<int32_t>>();
    const auto rounded_gaps = prompt["bfloat16"]["gap"].get<std::vector<double>>();
    bool alike = true;
    for (size_t i = 0; i < one.answer.size(); ++i) {
      const bool same = rounded[i] == one.answer[i];
      const double gap = same ? rounded_gaps[i] : -rounded_gaps[i];
      one.moved.push_back(alike ? std::abs(gap - one.gaps[i]) : 0);
      alike = alike && same;
    }
    one.tokens.insert(one.tokens.end(), one.answer.begin(), one.answer.end() - 1);
    answers.push_back(std::move(one));
  }
  EXPECT_GE(answers.size(), 200u);
  return answers;
}

std::unique_ptr<K2Model> LoadPocketModel(const OpsTable& ops, ThreadPool* pool) {
  K2LoadOptions options;
  options.positions_max = 8192;
  auto model =
      K2Model::Load(K2Config::Read(kPocketModel).value(), kPocketModel, ops, pool, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(model).value();
}

std::vector<float> AnswerLogits(K2Model& model, const PocketAnswer& recorded, KvForm kv) {
  TinyRunner runner(model, std::ssize(recorded.tokens), kv);
  const std::vector<float> all = runner.Run(recorded.tokens, recorded.prompt_length);
  return {all.begin() + (recorded.prompt_length - 1) * model.config().vocab, all.end()};
}

int64_t Best(std::span<const float> logits) {
  if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); })) return -1;
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

std::span<const float> RowOf(std::span<const float> logits, size_t row, int64_t vocab) {
  const auto width = static_cast<size_t>(vocab);
  return logits.subspan(row * width, width);
}

void ChoiceCounter::Add(const PocketAnswer& recorded,
                        std::span<const float> logits,
                        const std::function<std::vector<float>()>& with_same_experts) {
  ASSERT_EQ(logits.size(), recorded.answer.size() * static_cast<size_t>(vocab_));
  std::vector<float> same_experts;  // computed where it is needed
  for (size_t i = 0; i < recorded.answer.size(); ++i, ++steps_) {
    const int32_t want = recorded.answer[i];
    const auto row = RowOf(logits, i, vocab_);
    const int64_t chosen = Best(row);
    EXPECT_GE(chosen, 0) << recorded.id << " step " << i << ": a logit is no number";
    if (chosen == want || chosen < 0) continue;

    bool by_token = recorded.gaps[i] <= 3 * Bf16Spacing(row[want]);
    if (!by_token) {
      if (same_experts.empty()) same_experts = with_same_experts();
      const int64_t with_them = Best(RowOf(same_experts, i, vocab_));
      // Where experts do not explain it, neither the gap nor what the choice is ahead by may be
      // more than the reference's own bf16 makes of that gap.
      by_token = with_them != want && recorded.gaps[i] <= recorded.moved[i] &&
                 row[chosen] - row[want] <= recorded.moved[i];
      if (!by_token) {
        EXPECT_EQ(with_them, want) << recorded.id << " step " << i;
      }
    }
    ++(by_token ? token_ties_ : expert_ties_);
    const auto here = recorded.answer.begin() + static_cast<int64_t>(i);
    const bool ended = std::find(recorded.answer.begin(), here, end_of_turn_) != here;
    fmt::print("{} step {}{}: {} instead of {}, a tie of {} (gap {:.4f})\n", recorded.id, i,
               ended ? ", after the end of the turn" : "", chosen, want,
               by_token ? "tokens" : "experts", recorded.gaps[i]);
  }
}

void ChoiceCounter::Finish(const char* what) const {
  fmt::print("{}: {} choices, {} ties of tokens, {} of experts\n", what, steps_, token_ties_,
             expert_ties_);
  EXPECT_GT(steps_, 0);
  EXPECT_LE(token_ties_ + expert_ties_, std::max(2, steps_ / 500));
}

}  // namespace baltoro::test
