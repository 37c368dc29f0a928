#pragma once

// The forms in which the KV cache keeps the vector of one token and layer: the latent, then the
// rotated key (model-family §4). Every rounding to e4m3 saturates: what is larger than 448 becomes
// 448, and only NaN becomes NaN.

#include <cstdint>
#include <string>

#include "base/status.h"
#include "tensor/dtype.h"

namespace baltoro {

enum class KvForm : uint8_t {
  kF32,
  kBf16,
  kFp8,  // e4m3(x / s) for all values; s is one f32 of the layer, kept beside the cache
  // Per token: e4m3(x / s[g]) for each latent, one f32 s for each group of 128 latents, then the
  // rotated key as bf16. s[g] = max |x| of the group / 448, at least the smallest normal f32.
  // 656 bytes for 512 latents and a key of 64.
  kFp8Groups,
};

inline constexpr int64_t kKvGroup = 128;  // latents that share a scale in kFp8Groups

constexpr int64_t KvGroups(int64_t latent) {
  return (latent + kKvGroup - 1) / kKvGroup;
}

// Bytes of one token in one layer.
constexpr int64_t KvTokenBytes(KvForm form, int64_t latent, int64_t rope) {
  switch (form) {
    case KvForm::kF32:
      return 4 * (latent + rope);
    case KvForm::kBf16:
      return 2 * (latent + rope);
    case KvForm::kFp8:
      return latent + rope;
    case KvForm::kFp8Groups:
      return latent + 4 * KvGroups(latent) + 2 * rope;
  }
  return 0;
}

// The scale of a group of kFp8Groups whose largest magnitude is `largest`.
float KvGroupScale(float largest);

constexpr KvForm PlainKvForm(DType act) {
  return act == DType::kF32 ? KvForm::kF32 : KvForm::kBf16;
}

// As --kv-cache-dtype says it: float32, bfloat16, fp8, fp8_ds_mla.
const char* KvFormName(KvForm form);

// A value of --kv-cache-dtype; "auto" is the activation type. kInvalidArgument names the values
// that there are.
Result<KvForm> ParseKvForm(const std::string& value, DType act);

}  // namespace baltoro
