#pragma once

// Sampling on the GPU, cut into what the host does before, the launch, and what the host does
// after, so that the launch can be part of a graph. One cluster of eight blocks takes one row of
// logits into its shared memory, reads it from there as often as the row's filters need, and writes
// the token. Weights are f32, their sums exact integers of 2^-44, so that nothing depends on the
// order of additions. Floor: each row is read once.

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/gpu_limits.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// A row as the kernel reads it. Lists are places in the words that follow the rows.
struct SampleWant {
  uint64_t uniform;    // SamplingUniform as 53 bits, then eleven zeros
  int32_t logits_row;  // -1: padding, gives token -1
  int32_t given;
  int32_t top_k;
  int32_t top_logprobs;
  float temperature, top_p, min_p;
  float presence, frequency, repetition;
  int32_t prompt, prompt_count;
  int32_t output, output_count;
  int32_t banned, banned_count;
  int32_t bias, bias_count;  // ids in rising order, then as many values
  int32_t mask;              // -1: none
  int32_t unused;
};
static_assert(sizeof(SampleWant) == 88);

struct SampleAnswer {
  int32_t token;
  int32_t rank;
  float logprob;
  int32_t tops;  // entries that follow; -1: no log-probabilities
};

struct SampleTop {
  int32_t id;
  float logprob;
};

// Most top_logprobs of a row.
inline constexpr int32_t kSampleTopMax = kGpuLogprobsMax;

// What the shapes of a launch depend on.
struct SampleShape {
  int64_t rows = 0;
  int64_t words = 0;       // of all lists
  int32_t top_max = 0;     // largest top_logprobs, at least 0
  bool penalties = false;  // whether any row has lists of the prompt or output

  size_t want_bytes() const {
    return static_cast<size_t>(rows) * sizeof(SampleWant) + static_cast<size_t>(words) * 4;
  }
  size_t answer_bytes() const {
    return static_cast<size_t>(rows) *
           (sizeof(SampleAnswer) + static_cast<size_t>(top_max) * sizeof(SampleTop));
  }
};

SampleShape SampleShapeOf(std::span<const SampleRow> rows, int64_t vocab);

// Writes shape.want_bytes() to host memory. Ids outside the vocabulary end the process.
void PackSample(std::span<const SampleRow> rows,
                int64_t vocab,
                const SampleShape& shape,
                void* wants);

struct SampleLaunch {
  TensorView logits;            // [rows, vocab] f32, device; not written
  SampleShape shape;            // `words` is not looked at
  const void* wants = nullptr;  // device, as PackSample wrote it
  void* answers = nullptr;      // device: rows SampleAnswer, then for each row top_max SampleTop
  int32_t* tokens = nullptr;    // device, optional: the tokens again, side by side
};

// Queues the launch; can be captured. With equal rows, top_max and penalties (true is always right)
// it can be replayed for other wants.
void LaunchSample(const OpContext& ctx, const SampleLaunch& launch);

// From a host copy of the answers.
void ReadSample(const SampleShape& shape, const void* answers, std::span<SampleResult> results);

}  // namespace baltoro::cuda
