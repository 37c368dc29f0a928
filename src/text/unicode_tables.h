#pragma once

// What the pre-tokeniser must know of a character, by a two-stage table of Unicode 15.0 made by
// tools/make_unicode_tables.cc from ICU 72. The version is pinned here: a character that is
// assigned later stays "other", whatever library the machine has.

#include <cstdint>

namespace baltoro {

// A character's class is a set of these. Every character has at least one; 0 is left for bytes
// that are no character.
enum CharClassBit : uint8_t {
  kCharHan = 1,       // script Han, of whatever category
  kCharUpper = 2,     // Lu, Lt; not Han
  kCharLower = 4,     // Ll; not Han
  kCharCaseless = 8,  // Lm, Lo, M; not Han. Regex classes for upper and lower hold both of these
  kCharNumber = 16,   // N
  kCharSpace = 32,    // White_Space
  kCharNewline = 64,  // CR, LF
  kCharPrefix = 128,  // neither letter nor number nor CR, LF: may stand before a word
};

inline constexpr int kCharBlockBits = 7;
extern const uint8_t kCharBlockIndex[];  // [0x110000 >> 7]
extern const uint8_t kCharBlocks[];      // [blocks * 128]; block 0 is ASCII

// `code` <= 0x10FFFF.
inline uint8_t CharClass(char32_t code) {
  constexpr uint32_t kMask = (1u << kCharBlockBits) - 1;
  const uint32_t block = kCharBlockIndex[code >> kCharBlockBits];
  return kCharBlocks[(block << kCharBlockBits) | (code & kMask)];
}

// `byte` < 0x80.
inline uint8_t AsciiClass(uint8_t byte) {
  return kCharBlocks[byte];
}

}  // namespace baltoro
