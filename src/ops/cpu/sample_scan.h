#pragma once

// The passes of sampling that read a whole row of logits, one table an instruction set. Results do
// not depend on the instruction set: no reduction is reordered and no product is fused.

#include <cstdint>

namespace baltoro::cpu {

// Rows are looked at in chunks of so many ids; the last one may be shorter.
constexpr int64_t kScanChunk = 256;
constexpr int64_t ScanChunks(int64_t n) {
  return (n + kScanChunk - 1) / kScanChunk;
}

struct SampleScan {
  // The highest of each chunk. False if some x is infinite or not a number.
  bool (*maxima)(const float* x, int64_t n, float* chunk_maxima);
  // sums[c] = sum over chunk c of exp((x - highest) * inverse_temperature).
  void (*exp_sums)(
      const float* x, int64_t n, float highest, float inverse_temperature, double* sums);
  // out[i] = exp((x[i] - highest) * inverse_temperature), for at most one chunk: the very terms of
  // exp_sums.
  void (*exp_chunk)(
      const float* x, int64_t n, float highest, float inverse_temperature, float* out);
  // How many x are greater than `value`.
  int64_t (*count_greater)(const float* x, int64_t n, float value);
  // x = -infinity where the bit is not set.
  void (*apply_mask)(float* x, int64_t n, const uint32_t* mask);
};

const SampleScan& ActiveSampleScan();

extern const SampleScan kSampleScanAvx2, kSampleScanAvx512;

}  // namespace baltoro::cpu
