#pragma once

// From e4m3, as a KV cache holds it, to the activation type: out[i] = in[i] * scale, rounded to f32
// and then to the type. Everything here runs on the calling thread and gives the same bits on every
// instruction set.

#include <cstdint>

#include "tensor/dtype.h"

namespace baltoro::cpu {

// By the active instruction set.
void WidenE4M3(Bf16* out, const uint8_t* in, float scale, int64_t n);
void WidenE4M3(float* out, const uint8_t* in, float scale, int64_t n);

// Latents of KvForm::kFp8Groups: `tokens` rows of `latent` codes and their scales, `token_bytes`
// from one to the next, to rows of `out`, `stride` elements from one to the next.
struct GroupedRows {
  const uint8_t* in = nullptr;
  int64_t token_bytes = 0;
  int64_t tokens = 0;
  int64_t latent = 0;
};
void WidenGroups(Bf16* out, int64_t stride, const GroupedRows& rows);
void WidenGroups(float* out, int64_t stride, const GroupedRows& rows);

// Each is defined in a file compiled for its instruction set alone.
void WidenE4M3Avx2(Bf16* out, const uint8_t* in, float scale, int64_t n);
void WidenE4M3Avx2(float* out, const uint8_t* in, float scale, int64_t n);
void WidenE4M3Avx512(Bf16* out, const uint8_t* in, float scale, int64_t n);
void WidenGroupsAvx512(Bf16* out, int64_t stride, const GroupedRows& rows);

}  // namespace baltoro::cpu
