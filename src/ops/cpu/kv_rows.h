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

// Each is defined in a file compiled for its instruction set alone.
void WidenE4M3Avx2(Bf16* out, const uint8_t* in, float scale, int64_t n);
void WidenE4M3Avx2(float* out, const uint8_t* in, float scale, int64_t n);
void WidenE4M3Avx512(Bf16* out, const uint8_t* in, float scale, int64_t n);

}  // namespace baltoro::cpu
