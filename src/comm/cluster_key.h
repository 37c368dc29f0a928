#pragma once

// The one secret that all ranks of a world share, and what is proven with it: HMAC-SHA256.

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace baltoro {

inline constexpr size_t kClusterKeyBytesMin = 16;

using Digest = std::array<std::byte, 32>;

inline std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Over the parts, each preceded by its length: no two lists of parts look the same.
Digest Sign(std::span<const std::byte> key, std::span<const std::span<const std::byte>> parts);

// In a time that does not depend on where they differ.
bool SameDigest(const Digest& a, const Digest& b);

// From the system's generator.
void FillRandom(std::span<std::byte> bytes);

}  // namespace baltoro
