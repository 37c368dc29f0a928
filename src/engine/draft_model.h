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
  // As the target's; its blocks may reach beyond its keys, as far as drafts may go. Where sequences
  // were added that nobody reads, they are here as well, without valid rows.
  AttentionSequence attention;
  int32_t valid_rows = 0;  // of its query rows, from the first on: the others held refused drafts
  TokenId next = 0;        // the token behind the last of these rows
  int32_t wanted = 0;      // drafts; 0: its keys alone
};

class DraftModel {
 public:
  struct Config {
    std::vector<int32_t> tokens;  // ReadDraftTokens
    KvLayerView cache;            // its layer of the target's blocks
    int32_t tokens_max = 0;       // of a step of the target
    int32_t sequences_max = 0;    // likewise
    int32_t drafts_max = 1;       // of a sequence
  };
  // `pool`, and the model's operations and ranks, must outlive it. On all ranks of a model over
  // several the same is asked, and all say the same.
  static Result<std::unique_ptr<DraftModel>> Create(std::unique_ptr<K2Model> model,
                                                    Config config,
                                                    ThreadPool* pool);

  // Once the target has computed and sampled `step`, with what its layers left in step.taps: drafts
  // for each sequence, no more than wanted; fewer where its blocks end, or where logits are not
  // finite.
  std::vector<std::vector<TokenId>> Propose(const ForwardBatch& step,
                                            std::span<const DraftSequence> sequences);

  // Where the model records (K2Model::UseGraphs): has the passes recorded that come behind a step
  // of as many sequences as one of `sizes`, with `each` rows in every one; first with one row.
  // `taps` are those of steps, with as many rows at least.
  void Record(std::span<const int32_t> sizes, int32_t each, std::span<const TensorView> taps);

  int64_t weight_bytes() const { return model_->weight_bytes(); }
  int64_t scratch_bytes() const;

 private:
  // A sequence on its own way.
  struct Chain {
    size_t sequence;     // in Propose's
    int32_t row;         // of stream_: what it said last
    int32_t position;    // of the row that it computes next
    int32_t drafts = 0;  // that it makes, the one behind `row` among them
  };

  DraftModel(std::unique_ptr<K2Model> model, Config config, ThreadPool* pool);
  // `drafts`: whether any is wanted; else the keys are all that it leaves.
  std::vector<Chain> Follow(const ForwardBatch& step,
                            std::span<const DraftSequence> sequences,
                            bool drafts);
  // What a step's pictures are to the rows before theirs.
  void TakeOverrides(const ForwardBatch& step,
                     std::span<const DraftSequence> sequences,
                     std::vector<int32_t>& rows,
                     std::vector<TensorView>& pieces) const;
  // For draft `draft`, the first being 0.
  void GoOn(int32_t draft, std::span<const DraftSequence> sequences, std::vector<Chain>& chains);
  void Forward(const ForwardBatch& batch);
  void RecordOne(int32_t size, int32_t each, int64_t keys, std::span<const TensorView> taps);
  // How many drafts there is room for behind the position of a sequence.
  int32_t Room(const DraftSequence& sequence, int32_t position) const;
  TensorView Rows(Buffer& buffer, int64_t rows) const;
  // The tokens that pass `draft` picks, or picked.
  TensorView Picks(int32_t draft, int64_t rows) const;

  const std::unique_ptr<K2Model> model_;
  const Config config_;
  ThreadPool* const pool_;
  Arena arena_, staging_;
  Buffer names_;   // config_.tokens, in the operations' memory; empty: the same as the target's
  Buffer stream_;  // [tokens_max, H] f32: its own residual stream behind its layer
  Buffer logits_;  // [sequences_max, its vocabulary] f32
  Buffer picks_;   // [drafts_max, sequences_max] i32: what each pass picked, by the target's names
  std::vector<int32_t> sizes_;  // recorded
};

}  // namespace baltoro
