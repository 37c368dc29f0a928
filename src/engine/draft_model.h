#pragma once

// A draft model at work behind its target (Eagle3, model-family §9.4): after each step of the
// target it computes the same rows from what the target's layers left (its keys are a further layer
// of the same blocks), and then goes on alone for a few tokens a sequence.
//
// Row p of a sequence is the target's features at position p with the token at p + 1, so that the
// last row has the token that was just sampled. What a chain of drafts writes to the cache is
// written again, with the target's features, once the target has computed these positions.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "model/k2_model.h"
#include "request/request.h"

namespace baltoro {

// One sequence of the target's step.
struct DraftSequence {
  // As the target's; its blocks may reach beyond its keys, as far as drafts may go.
  AttentionSequence attention;
  int32_t valid_rows = 0;  // of its query rows, from the first on: the others held refused drafts
  TokenId next = 0;        // the token behind the last of these rows
  int32_t wanted = 0;      // drafts; 0: its keys alone
};

class DraftModel {
 public:
  // For steps of the target of up to `tokens_max` tokens and `sequences_max` sequences. `cache` is
  // the draft's layer of the target's blocks. `tokens` as ReadDraftTokens gives them. The model's
  // pool and operations must outlive it.
  static Result<std::unique_ptr<DraftModel>> Create(std::unique_ptr<K2Model> model,
                                                    std::vector<int32_t> tokens,
                                                    const KvLayerView& cache,
                                                    ThreadPool* pool,
                                                    int32_t tokens_max,
                                                    int32_t sequences_max);

  // Once the target has computed and sampled `step`, with what its layers left in step.taps: drafts
  // for each sequence, no more than wanted; fewer where its blocks end, or where logits are not
  // finite.
  std::vector<std::vector<TokenId>> Propose(const ForwardBatch& step,
                                            std::span<const DraftSequence> sequences);

  int64_t weight_bytes() const { return model_->weight_bytes(); }

 private:
  // A sequence on its own way.
  struct Chain {
    size_t sequence;    // in Propose's
    int32_t row;        // of stream_: what it said last
    int32_t position;   // of the row that it computes next
    TokenId token = 0;  // that this row has
  };

  DraftModel(std::unique_ptr<K2Model> model,
             std::vector<int32_t> tokens,
             const KvLayerView& cache,
             ThreadPool* pool);
  std::vector<Chain> Follow(const ForwardBatch& step, std::span<const DraftSequence> sequences);
  void GoOn(std::span<const DraftSequence> sequences, std::vector<Chain>& chains);
  void Forward(const ForwardBatch& batch);
  // Takes the likeliest token of each row of the logits; chains without one end.
  void Choose(std::vector<Chain>& chains, std::vector<std::vector<TokenId>>& drafts);
  TensorView Rows(Buffer& buffer, int64_t rows) const;

  const std::unique_ptr<K2Model> model_;
  const std::vector<int32_t> target_tokens_;  // empty: the same
  const KvLayerView cache_;
  ThreadPool* const pool_;
  Arena arena_, sample_arena_;
  Buffer stream_;  // [tokens_max, H] f32: its own residual stream behind its layer
  Buffer logits_;  // [sequences_max, its vocabulary] f32
};

}  // namespace baltoro
