#pragma once

// One forward pass, between the files of the worker: packed in worker_pack.cc, run in worker.cc,
// sampled from in worker_sample.cc.

#include <cstdint>
#include <vector>

#include "engine/worker.h"

namespace baltoro {

struct Worker::BatchEntry {
  size_t index;              // in the plan and the result
  int32_t prompt_row_begin;  // logits rows of prompt log-probabilities
  int32_t prompt_row_count;
  int32_t sampled_row_begin;  // logits rows of sampled tokens
  int32_t sampled_row_count;
};

// What is sampled for an entry.
struct Worker::Asked {
  const BatchEntry* entry;
  size_t known;          // tokens of the slot's output when the step began
  int32_t rows = 0;      // sampled rows, of those of the entry
  int32_t ends_at = -1;  // the row whose token is the last; -1: none
};

// `sequences` borrows the slots' block tables.
struct Worker::Batch {
  using Entry = BatchEntry;
  std::vector<Entry> entries;
  std::vector<int32_t> tokens, positions;
  std::vector<int64_t> cache_slots;
  std::vector<AttentionSequence> sequences;
  std::vector<int32_t> logits_rows;
  TensorView logits;
  // Of pictures: rows of the batch, rising, and what takes their places, [rows, H] in host memory.
  std::vector<int32_t> override_rows;
  std::vector<TensorView> embedding_overrides;
  int32_t rows_each = 0;  // above 0: every sequence has so many rows, those behind its own unread
  int32_t sequences_all = 0;  // above 0: so many sequences, those behind its own unread
  bool fixed = false;         // of as many rows as all passes over sampled tokens
};

}  // namespace baltoro
