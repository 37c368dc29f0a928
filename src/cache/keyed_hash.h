#pragma once

// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein): a hash that nobody can steer
// without the key.

#include <array>
#include <cstdint>
#include <span>

namespace baltoro {

using HashKey = std::array<uint64_t, 2>;

struct Hash128 {
  uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};

Hash128 SipHash128(const HashKey& key, std::span<const uint8_t> bytes);

}  // namespace baltoro
