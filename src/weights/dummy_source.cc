#include "weights/dummy_source.h"

#include <cmath>

namespace baltoro {

uint32_t HashStream(std::string_view name, uint64_t seed) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  hash = MixBits(hash ^ static_cast<uint32_t>(seed));
  return MixBits(hash ^ static_cast<uint32_t>(seed >> 32));
}

std::optional<SourceTensor> DummySource::Find(std::string_view name,
                                              const std::vector<int64_t>& wanted) {
  return SourceTensor{.name = std::string(name),
                      .dtype = DType::kBf16,
                      .shape = wanted,
                      .handle = HashStream(name, seed_)};
}

Status DummySource::Read(const SourceTensor& tensor, int64_t row, TensorView out) const {
  BT_CHECK(out.rank == 2 && out.contiguous() && out.dtype == DType::kBf16);
  auto* to = out.as<Bf16>();
  const int64_t count = out.num_elements();
  if (tensor.shape.size() == 1) {
    // Norm weights are 1; a selection bias of the router is small and even.
    const float value = tensor.name.ends_with("bias") ? 0.0f : 1.0f;
    for (int64_t i = 0; i < count; ++i) to[i] = ToBf16(value);
    return {};
  }
  const auto seed = static_cast<uint32_t>(tensor.handle);
  const auto first = static_cast<uint32_t>(row * out.dim(1));
  const auto scale = static_cast<float>(std::sqrt(3.0 / static_cast<double>(out.dim(1))));
  for (int64_t i = 0; i < count; ++i) {
    // Finite, so the plain rounding will do; a NaN test would keep this from being vectorised.
    const auto bits =
        std::bit_cast<uint32_t>(HashUniform(seed, first + static_cast<uint32_t>(i)) * scale);
    to[i].bits = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
  return {};
}

}  // namespace baltoro
