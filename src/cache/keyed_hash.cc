#include "cache/keyed_hash.h"

#include <bit>
#include <cstring>

namespace baltoro {

namespace {

struct State {
  uint64_t v0, v1, v2, v3;

  void Rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  }
  void Absorb(uint64_t word) {
    v3 ^= word;
    Rounds(2);
    v0 ^= word;
  }
  uint64_t Fold() const { return v0 ^ v1 ^ v2 ^ v3; }
};

}  // namespace

Hash128 SipHash128(const HashKey& key, std::span<const uint8_t> bytes) {
  static_assert(std::endian::native == std::endian::little);
  State state{0x736f6d6570736575 ^ key[0], 0x646f72616e646f6d ^ key[1] ^ 0xee,
              0x6c7967656e657261 ^ key[0], 0x7465646279746573 ^ key[1]};
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    state.Absorb(word);
  }
  uint64_t last = static_cast<uint64_t>(bytes.size()) << 56;
  for (size_t i = 0; at + i < bytes.size(); ++i) last |= uint64_t{bytes[at + i]} << (8 * i);
  state.Absorb(last);

  Hash128 hash;
  state.v2 ^= 0xee;
  state.Rounds(4);
  hash.low = state.Fold();
  state.v1 ^= 0xdd;
  state.Rounds(4);
  hash.high = state.Fold();
  return hash;
}

}  // namespace baltoro
