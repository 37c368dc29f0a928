#pragma once

// The recorded Eagle3 drafts (tests/golden/eagle3, whose README says how they are made), as
// checkpoints on disk.

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/draft_config.h"
#include "model/k2_model.h"
#include "ops/thread_pool.h"
#include "support/support.h"
#include "support/tiny_model.h"

namespace baltoro::test {

class GoldenDraft {
 public:
  static size_t Count();
  static std::string NameOf(size_t index);
  // Writes its folder.
  explicit GoldenDraft(size_t index);

  const Json& golden() const { return golden_; }
  const std::string& dir() const { return dir_.path(); }
  const K2Config& target() const { return target_; }
  double bf16_nmse() const { return golden_["bf16_nmse"].get<double>(); }

  Result<K2Config> Config() const { return ReadDraftConfig(dir(), target_); }
  // Whole, or the part of one of `ranks`, which load side by side.
  std::unique_ptr<K2Model> Load(const OpsTable& ops, ModelRanks* ranks = nullptr);
  // Whether so many ranks can share it.
  bool CanBeCut(int32_t ranks) const;
  std::vector<int32_t> Tokens() const;
  // The target's residual streams at positions [0, count), one [count, H] for each tap.
  std::vector<std::vector<float>> Taps(int64_t count) const;

  ThreadPool* pool() { return &pool_; }

 private:
  const Json& golden_;
  const K2Config target_;
  TempDir dir_;
  TinySource target_weights_{true};
  ThreadPool pool_{1};  // tests run side by side
  std::mutex loading_;
};

}  // namespace baltoro::test
