#pragma once

// A bf16 checkpoint to one in a quantised form, in another folder.

#include <map>
#include <set>
#include <string>

#include "base/status.h"
#include "weights/quantize_plan.h"
#include "weights/weight_source.h"

namespace baltoro {

struct QuantizeOptions {
  QuantFormat format = QuantFormat::kFp8;
  std::set<TensorRole> parts;  // empty: UsualParts
  int64_t shard_bytes = 5'000'000'000;
  int threads = 1;
  LoadProgress progress;  // bytes of the source; called on the calling thread
};

// How far the stored numbers of a part lie from what they were made of.
struct QuantizeError {
  WeightForm form = WeightForm::kBf16;
  int64_t matrices = 0;
  int64_t bytes_before = 0, bytes_after = 0;
  double squared_error = 0, squared_weights = 0;

  double relative() const;  // root of the quotient of the two sums
};

struct QuantizeSummary {
  std::map<TensorRole, QuantizeError> parts;
  int64_t bytes_before = 0, bytes_after = 0;  // of all tensors
  size_t files = 0;
};

// Writes `to`, which must not be there, as `to`.partial first; after an error neither is left.
// Memory in use: some megabytes a thread. Weight files are sharded and indexed as the public
// checkpoints of the format are, config.json is adapted, and everything else that lies beside the
// weights is copied.
Result<QuantizeSummary> QuantizeCheckpoint(const std::string& from,
                                           const std::string& to,
                                           const QuantizeOptions& options);

}  // namespace baltoro
