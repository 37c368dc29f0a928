#pragma once

// Hashes of 128 bits that nobody can aim at: they start from numbers drawn when the process starts.

#include <cstdint>
#include <string_view>

#include "grammar/mask_store.h"

namespace baltoro {

// Drawn once in a process.
Key128 ProcessSalt();

inline uint64_t MixBits(uint64_t value) {
  value ^= value >> 32;
  value *= 0xD6E8FEB86659FD93u;
  value ^= value >> 29;
  value *= 0x9E3779B97F4A7C15u;
  return value ^ value >> 32;
}

class KeyHash {
 public:
  explicit KeyHash(uint64_t kind) {
    static const Key128 salt = ProcessSalt();
    key_ = {MixBits(salt.low ^ kind), MixBits(salt.high + kind)};
  }
  void Add(uint64_t value) {
    key_.low = MixBits(key_.low ^ value) + key_.high;
    key_.high = MixBits(key_.high + value * 0xA0761D6478BD642Fu) ^ key_.low;
  }
  void AddBytes(std::string_view bytes);
  Key128 key() const { return key_; }

 private:
  Key128 key_;
};

}  // namespace baltoro
