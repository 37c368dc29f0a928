#include "base/keyed_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace baltoro {
namespace {

static_assert(std::endian::native == std::endian::little);

struct Key {
  uint64_t low = 0;
  uint64_t high = 0;
};

uint64_t Draw(std::random_device& device) {
  const uint64_t high = device();
  return high << 32 | device();
}

const Key& ProcessKey() {
  static const Key key = [] {
    std::random_device device;
    const uint64_t low = Draw(device);
    return Key{.low = low, .high = Draw(device)};
  }();
  return key;
}

struct SipState {
  uint64_t v0, v1, v2, v3;

  void Round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }
  void Take(uint64_t word) {
    v3 ^= word;
    Round();
    v0 ^= word;
  }
};

}  // namespace

uint64_t KeyedHash(std::string_view text) {
  const Key& key = ProcessKey();
  SipState state{.v0 = key.low ^ 0x736f6d6570736575,
                 .v1 = key.high ^ 0x646f72616e646f6d,
                 .v2 = key.low ^ 0x6c7967656e657261,
                 .v3 = key.high ^ 0x7465646279746573};
  const char* at = text.data();
  size_t left = text.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    state.Take(word);
  }
  uint64_t last = static_cast<uint64_t>(text.size()) << 56;
  for (size_t i = 0; i < left; ++i) {
    last |= static_cast<uint64_t>(static_cast<unsigned char>(at[i])) << (8 * i);
  }
  state.Take(last);
  state.v2 ^= 0xff;
  for (int i = 0; i < 3; ++i) state.Round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace baltoro
