#pragma once

// The pocket model as it lies in the repository, and what transformers answers with it
// (tests/golden/pocket_greedy.json.gz, made by tools/record_pocket_golden.py).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/k2_model.h"

namespace baltoro::test {

inline constexpr char kPocketModel[] = "pocket/model";
bool HasPocketWeights();

// One prompt of the recording: what transformers answered in float32, and how far its best logit
// lay above its second at each step.
struct PocketAnswer {
  std::string id;
  std::vector<int32_t> tokens;  // the prompt and all but the last of the answer
  int32_t prompt_length = 0;
  std::vector<int32_t> answer;
  std::vector<double> gaps;
  // How far transformers' own bf16 moves each of these, as long as both had answered alike; else 0.
  std::vector<double> moved;
};
// Empty: the recording is not there.
std::vector<PocketAnswer> ReadPocketAnswers();

std::unique_ptr<K2Model> LoadPocketModel(const OpsTable& ops, ThreadPool* pool);

// Logits of each step of the answer, [steps, vocab], as serving computes them: the prompt in the
// expanded form, the answer in the absorbed one; in one step.
std::vector<float> AnswerLogits(K2Model& model, const PocketAnswer& recorded, KvForm kv);
inline std::vector<float> AnswerLogits(K2Model& model, const PocketAnswer& recorded) {
  return AnswerLogits(model, recorded, PlainKvForm(model.ops().act));
}

// The place of the largest; -1 if any is no finite number.
int64_t Best(std::span<const float> logits);
std::span<const float> RowOf(std::span<const float> logits, size_t row, int64_t vocab);

// Greedy choices in bf16 beside the recorded ones, each given the recorded answer so far. A choice
// may differ at a tie: where the two best of the reference lie within three spacings of bf16
// numbers of that size; where a tie between two experts was tipped, which is so if it is right
// with the experts of float32; or where the reference's own bf16 moves that gap by at least as
// much. Each is printed; anything else is a failure.
class ChoiceCounter {
 public:
  // `end_of_turn` is told of where a tie comes after it.
  ChoiceCounter(int64_t vocab, int32_t end_of_turn) : vocab_(vocab), end_of_turn_(end_of_turn) {}
  // `with_same_experts` gives the logits of the same steps, with the experts of float32; it is
  // called where a choice differs beyond a tie of tokens.
  void Add(const PocketAnswer& recorded,
           std::span<const float> logits,
           const std::function<std::vector<float>()>& with_same_experts);
  // Prints the sums; no more than one choice in 500 may be a tie.
  void Finish(const char* what) const;

 private:
  const int64_t vocab_;
  const int32_t end_of_turn_;
  int steps_ = 0, token_ties_ = 0, expert_ties_ = 0;
};

}  // namespace baltoro::test
