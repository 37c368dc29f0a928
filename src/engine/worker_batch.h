#pragma once

// One forward pass, between the files of the worker: packed in worker_pack.cc, run in worker.cc,
// sampled from in worker_sample.cc.

#include <cstdint>
#include <vector>

#include "engine/worker.h"

namespace baltoro {

// `sequences` borrows the slots' block tables.
struct Worker::Batch {
  struct Entry {
    size_t index;              // in the plan and the result
    int32_t prompt_row_begin;  // logits rows of prompt log-probabilities
    int32_t prompt_row_count;
    int32_t sampled_row_begin;  // logits rows of sampled tokens
    int32_t sampled_row_count;
  };
  std::vector<Entry> entries;
  std::vector<int32_t> tokens, positions;
  std::vector<int64_t> cache_slots;
  std::vector<AttentionSequence> sequences;
  std::vector<int32_t> logits_rows;
  TensorView logits;
  bool fixed = false;  // of as many rows as all passes over sampled tokens
};

}  // namespace baltoro
