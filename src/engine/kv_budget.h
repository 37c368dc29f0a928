#pragma once

// How much KV cache there is, and how long a request may be with it.

#include <cstdint>

#include "base/status.h"

namespace baltoro {

struct KvBudget {
  int64_t bytes = 0;
  int64_t num_blocks = 0;
  int64_t max_model_len = 0;
};

struct KvQuestion {
  int64_t bytes_asked = 0;      // 0: the smaller of 4 GiB and a quarter of what is available
  int64_t bytes_available = 0;  // host memory that could be had now
  int64_t bytes_per_token = 0;
  int64_t ways = 1;           // context ranks, each with these bytes, among which blocks are dealt
  int64_t model_len = 0;      // that the model was made for
  int64_t max_model_len = 0;  // asked for; 0: the model's; -1: as much as fits
  bool allow_longer = false;  // than the model was made for
};

// kInvalidArgument with the sentence that operators know when one request of the full length does
// not fit.
Result<KvBudget> PlanKvCache(const KvQuestion& question);

}  // namespace baltoro
