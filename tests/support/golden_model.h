#pragma once

// The recorded tiny models of every branch of the family (tests/golden/tiny_models.json.gz, made by
// tools/record_tiny_golden.py), run on any backend.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/k2_model.h"
#include "ops/thread_pool.h"
#include "support/tiny_model.h"

namespace baltoro::test {

// A recording of tests/golden; ends the program where it is not there.
Json ReadRecording(const std::string& path);

class GoldenModel {
 public:
  static size_t Count();
  static std::string NameOf(size_t index);
  explicit GoldenModel(size_t index);

  const K2Config& config() const { return config_; }
  int32_t tokens() const { return static_cast<int32_t>(tokens_.size()); }
  // How far transformers in bf16 lies from itself in float32, with the same experts.
  double bf16_nmse() const { return golden_["bf16_nmse"].get<double>(); }

  std::unique_ptr<K2Model> Load(const OpsTable& ops);
  // Logits of all tokens, [tokens, vocab], computed in one step.
  std::vector<float> Logits(K2Model& model, int32_t absorbed_from);

  // Every recorded logit within 1e-4 of the largest of its row; `logits` are of all tokens.
  void ExpectAgreement(std::span<const float> logits, const char* what) const;
  // The rows that were recorded, out of those of all tokens; and what transformers said there.
  std::vector<float> RecordedRowsOf(std::span<const float> logits) const;
  std::vector<float> Recorded() const;

 private:
  const Json& golden_;
  K2Config config_;
  std::vector<int32_t> tokens_;
  TinySource source_;   // makes each tensor once
  ThreadPool pool_{1};  // tests run side by side
};

}  // namespace baltoro::test
