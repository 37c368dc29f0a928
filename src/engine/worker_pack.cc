#include <algorithm>

#include "base/check.h"
#include "engine/graph_sizes.h"
#include "engine/worker_batch.h"

// From the sequences of a plan to the rows of a forward pass.

namespace baltoro {

void Worker::PackRow(const Slot& slot, TokenId token, int32_t position, Batch& batch) const {
  batch.tokens.push_back(token == kSampledToken ? slot.output.back() : token);
  batch.positions.push_back(position);
  batch.cache_slots.push_back(int64_t{slot.blocks[position / kBlockTokens]} * kBlockTokens +
                              position % kBlockTokens);
}

// Several tokens of a request, each as if the others were another's, that come before it: all keys
// of a pass are written before any is read. The logits of all rows are computed, wanted or not.
void Worker::PackDecodes(const StepPlan& plan, const PlannedSequence& planned, Batch& batch) const {
  const Slot& slot = slot_of(planned);
  const auto row_begin = static_cast<int32_t>(batch.tokens.size());
  const auto tokens = plan.tokens_of(planned);
  BT_CHECK(row_begin + planned.token_count <= config_.fixed.decode_rows);
  for (int32_t i = 0; i < planned.token_count; ++i) {
    const int32_t position = planned.first_position + i;
    PackRow(slot, tokens[i], position, batch);
    batch.logits_rows.push_back(row_begin + i);
    batch.sequences.push_back({.query_begin = row_begin + i,
                               .query_count = 1,
                               .first_position = position,
                               .absorbed_from = static_cast<int32_t>(slot.admitted.prompt.size()),
                               .blocks = slot.blocks,
                               .block_positions = {},
                               .key_count = position + 1});
  }
  batch.entries.back().sampled_row_begin = row_begin + planned.token_count - planned.sampled_rows;
  batch.entries.back().sampled_row_count = planned.sampled_rows;
}

void Worker::Pack(const StepPlan& plan, const PlannedSequence& planned, Batch& batch) {
  const Slot& slot = slot_of(planned);
  const auto row_begin = static_cast<int32_t>(batch.tokens.size());
  const auto prompt_count = static_cast<int32_t>(slot.admitted.prompt.size());
  const auto tokens = plan.tokens_of(planned);
  Batch::Entry& entry = batch.entries.back();
  entry.prompt_row_begin = static_cast<int32_t>(batch.logits_rows.size());
  for (int32_t i = 0; i < planned.token_count; ++i) {
    const int32_t position = planned.first_position + i;
    PackRow(slot, tokens[i], position, batch);
    if (planned.prompt_logprobs && position + 1 < prompt_count) {
      batch.logits_rows.push_back(row_begin + i);
      ++entry.prompt_row_count;
    }
  }
  // A row may be wanted twice only if it is before the end of the prompt and sampled from, which
  // cannot be.
  entry.sampled_row_begin = static_cast<int32_t>(batch.logits_rows.size());
  entry.sampled_row_count = planned.sampled_rows;
  for (int32_t i = planned.token_count - planned.sampled_rows; i < planned.token_count; ++i) {
    batch.logits_rows.push_back(row_begin + i);
  }
  const int32_t rows = std::max(planned.token_count, batch.rows_each);
  for (int32_t i = planned.token_count; i < rows; ++i) {
    RepeatRow(row_begin + planned.token_count - 1, batch);
    batch.logits_rows.push_back(row_begin + i);
  }
  batch.sequences.push_back({.query_begin = row_begin,
                             .query_count = rows,
                             .first_position = planned.first_position,
                             .absorbed_from = prompt_count,
                             .blocks = slot.blocks,
                             .block_positions = {},
                             .key_count = planned.first_position + planned.token_count});
}

void Worker::RepeatRow(int32_t row, Batch& batch) {
  batch.tokens.push_back(batch.tokens[static_cast<size_t>(row)]);
  batch.positions.push_back(batch.positions[static_cast<size_t>(row)]);
  batch.cache_slots.push_back(-1);
}

// A chunk of one row of a prompt looks like the others, and is not.
int32_t Worker::RowsEach(const StepPlan& plan, size_t begin, size_t end) const {
  if (graph_sizes_.empty() || config_.fixed.prompt_chunk > 0) return 0;
  int32_t most = 0;
  for (size_t i = begin; i < end; ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    if (!Decodes(planned) || planned.sampled_rows != planned.token_count) return 0;
    most = std::max(most, planned.token_count);
  }
  return LikeRecorded(static_cast<int32_t>(end - begin), most).rows;
}

Worker::Evened Worker::LikeRecorded(int32_t sequences, int32_t rows) const {
  if (graph_sizes_.empty() || config_.fixed.prompt_chunk > 0) return {};
  rows = GraphSizeFor(recorded_rows_, rows);
  sequences = GraphSizeFor(graph_sizes_, sequences);
  if (rows > recorded_rows_.back() || sequences > RecordedMax(rows)) return {};
  return {.sequences = sequences, .rows = rows};
}

Worker::Evened Worker::EvenedGroup(const StepPlan& plan) const {
  if (plan.group_sequences == 0) return {};
  const Evened evened = LikeRecorded(plan.group_sequences, plan.group_sequence_rows);
  // Rows that are there for their number alone would be for nothing.
  if (evened.sequences > 0 && evened.sequences > graph_sizes_.back()) return {};
  return evened;
}

std::vector<int64_t> Worker::GroupRowsOf(const StepPlan& plan) const {
  const Evened evened = EvenedGroup(plan);
  if (evened.sequences == 0) return plan.group_rows;
  return std::vector<int64_t>(plan.group_rows.size(), int64_t{evened.sequences} * evened.rows);
}

void Worker::TakePictures(const StepPlan& plan, Batch& batch) const {
  if (pictures_ == nullptr) return;  // of a later stage, to which the rows come from the one before
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    for (const PictureRows& rows : plan.sequences[batch.entries[i].index].pictures) {
      batch.embedding_overrides.push_back(pictures_->Rows(rows.from, rows.count));
      for (int32_t row = 0; row < rows.count; ++row) {
        batch.override_rows.push_back(batch.sequences[i].query_begin + rows.row + row);
      }
    }
  }
}

void Worker::Pad(Batch& batch) const {
  if (!batch.fixed && batch.rows_each == 0) return;
  const int32_t rows = batch.fixed ? 1 : batch.rows_each;
  const auto count = static_cast<int32_t>(batch.sequences.size());
  BT_CHECK(static_cast<int32_t>(batch.tokens.size()) == count * rows);
  BT_CHECK(batch.logits_rows.size() == batch.tokens.size());
  const int32_t size = batch.fixed               ? config_.fixed.decode_rows
                       : batch.sequences_all > 0 ? batch.sequences_all
                                                 : GraphSizeFor(graph_sizes_, count);
  // That of the fewest keys costs least; its experts are read anyway.
  AttentionSequence shortest =
      *std::ranges::min_element(batch.sequences, {}, &AttentionSequence::key_count);
  const int32_t like = shortest.query_begin;
  // There may be many such rows beside a long one: a part of the keys is enough for them.
  if (batch.fixed || batch.sequences_all > 0) {
    const int32_t part = config_.fixed.key_part_blocks * kBlockTokens;
    shortest.key_count = std::min(shortest.key_count, std::max(part, kBlockTokens));
  }
  for (int32_t i = count; i < size; ++i) {
    shortest.query_begin = i * rows;
    batch.sequences.push_back(shortest);
    for (int32_t row = 0; row < rows; ++row) {
      RepeatRow(like + row, batch);
      batch.logits_rows.push_back(i * rows + row);
    }
  }
}

}  // namespace baltoro
