#pragma once

// Stands in for the ranks in tests of the scheduler. It keeps what a rank keeps for each slot, and
// a KV cache in which the "value" of a position is a hash of all tokens up to it. Every step checks
// that the cache really holds what the plan claims to have been computed.

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "schedule/picture_store.h"
#include "schedule/step_plan.h"

namespace baltoro::test {

// A prompt whose first token is kFailBase + k fails when its output token k is sampled.
inline constexpr TokenId kFailBase = 1 << 20;
// A prompt whose first token is kEndBase + k has a constraint that allows k output tokens.
inline constexpr TokenId kEndBase = 1 << 21;
inline constexpr TokenId kVocab = 40;

// The hash of a sequence that is about to begin; `seed` stands for the salt, so that a prefix
// shared across salts is noticed.
uint64_t ChainStart(uint64_t seed);
// What an encoder makes of a row of a picture, and what a position comes to that stands for it.
uint64_t PictureValue(const PictureName& name, int32_t row);
uint64_t ChainPicture(uint64_t chain, uint64_t value);
uint64_t ChainNext(uint64_t chain, TokenId token);
// The token that follows a sequence with this hash.
TokenId OracleToken(uint64_t chain,
                    int32_t output_index,
                    int32_t min_tokens,
                    const std::vector<TokenId>& banned);

// What is computed together, where that is fixed: see SchedulerConfig.
struct FixedForms {
  int32_t prompt_chunk = 0;  // 0: it is not
  int32_t decode_rows = 0;
  int32_t prompt_logprob_rows_max = 0;
};

class MockExecutor {
 public:
  MockExecutor(int32_t num_blocks, int32_t max_num_seqs, const FixedForms& fixed, uint64_t seed);

  // The pictures of a request, and the layers of their encoder. The pixels are the name's bytes.
  void Expect(RequestId id, std::vector<RequestPicture> pictures) { expected_[id] = pictures; }
  void HasPictures(int32_t rows, int32_t layers, int32_t ranks) {
    picture_memory_.resize(static_cast<size_t>(rows));
    picture_layers_ = layers;
    picture_ranks_ = ranks;
  }

  StepResult Run(const StepPlan& plan);

  // The first thing that was wrong; empty if nothing was.
  const std::string& violation() const { return violation_; }
  bool IsPoisoned(BlockId block) const;
  // The blocks that a plan, executed before, writes.
  std::vector<BlockId> WrittenBlocks(const StepPlan& plan) const;

 private:
  struct Slot {
    bool live = false;
    AdmittedSequence admitted;
    std::vector<RequestPicture> pictures;
    std::vector<TokenId> tokens;
    std::vector<uint64_t> chain;  // one per token
    std::vector<BlockId> blocks;
    int32_t fail_at = -1, end_at = -1;
    bool failed = false;  // or ended
  };
  void Apply(const StepPlan& plan);
  void Encode(const PlannedEncode& encode);
  // The value of the picture that stands at a position; 0: none does.
  static uint64_t ValueAt(const Slot& slot, int32_t position);
  void RunSequence(const StepPlan& plan, const PlannedSequence& planned, SequenceResult& result);
  // What a position's value depends on beside the tokens: where the chunk of the prompt in which
  // the request computes it begins and ends; nothing else for tokens that were sampled.
  uint64_t FormOf(const Slot& slot, int32_t position) const;
  void CheckForm(const Slot& slot, const PlannedSequence& planned);
  bool ReadBefore(const Slot& slot, int32_t first_position);
  uint64_t& Kv(const Slot& slot, int32_t position);
  void Append(Slot& slot, TokenId token);
  void Violate(const std::string& what);

  std::vector<uint64_t> kv_;
  std::vector<Slot> slots_;
  FixedForms fixed_;
  std::unordered_map<RequestId, std::vector<RequestPicture>> expected_;
  std::vector<uint64_t> picture_memory_;
  int32_t picture_layers_ = 0, picture_ranks_ = 1;
  PlannedEncode batch_;  // on its way, with the layers done
  std::mt19937_64 random_;
  std::string violation_;
};

}  // namespace baltoro::test
