#include "text/pretokenizer.h"

#include <cstdint>

#include "text/unicode_tables.h"

namespace baltoro {
namespace {

using Byte = unsigned char;

constexpr uint8_t kUpperRun = kCharUpper | kCharCaseless;
constexpr uint8_t kLowerRun = kCharLower | kCharCaseless;

struct Char {
  uint8_t bits;    // 0 if the byte belongs to no character
  uint8_t length;  // in bytes; 1 for such a byte
};

constexpr Char kNoChar{0, 1};

bool IsContinuation(Byte byte) {
  return (byte & 0xC0) == 0x80;
}

Char ReadWideChar(const Byte* at, const Byte* end) {
  const uint32_t lead = at[0];
  const ptrdiff_t left = end - at;
  if (lead < 0xC2) return kNoChar;
  if (lead < 0xE0) {
    if (left < 2 || !IsContinuation(at[1])) return kNoChar;
    return {CharClass((lead & 0x1F) << 6 | (at[1] & 0x3Fu)), 2};
  }
  if (lead < 0xF0) {
    if (left < 3 || !IsContinuation(at[1]) || !IsContinuation(at[2])) return kNoChar;
    const uint32_t code = (lead & 0x0F) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu);
    if (code < 0x800 || (code >= 0xD800 && code < 0xE000)) return kNoChar;
    return {CharClass(code), 3};
  }
  if (left < 4 || !IsContinuation(at[1]) || !IsContinuation(at[2]) || !IsContinuation(at[3])) {
    return kNoChar;
  }
  const uint32_t code =
      (lead - 0xF0) << 18 | (at[1] & 0x3Fu) << 12 | (at[2] & 0x3Fu) << 6 | (at[3] & 0x3Fu);
  if (code < 0x10000 || code > 0x10FFFF) return kNoChar;
  return {CharClass(code), 4};
}

// `at` < `end`.
inline Char ReadChar(const Byte* at, const Byte* end) {
  if (*at < 0x80) [[likely]]
    return {AsciiClass(*at), 1};
  return ReadWideChar(at, end);
}

// The end of the run of characters with any of `bits`.
inline const Byte* RunEnd(const Byte* at, const Byte* end, uint8_t bits) {
  while (at < end) {
    const Char next = ReadChar(at, end);
    if ((next.bits & bits) == 0) break;
    at += next.length;
  }
  return at;
}

inline bool IsSymbol(uint8_t bits) {  // [^\s\p{L}\p{N}]
  return (bits & (kCharPrefix | kCharSpace)) == kCharPrefix;
}

// 's, 't, 're, 've, 'm, 'll, 'd in either case; the long s (U+017F) folds to s.
const Byte* ContractionEnd(const Byte* at, const Byte* end) {
  if (end - at < 2 || *at != '\'') return at;
  const int first = at[1] | 0x20;
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if (end - at < 3) return at;
  if (at[1] == 0xC5 && at[2] == 0xBF) return at + 3;
  const int second = at[2] | 0x20;
  if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
  if (first == 'l' && second == 'l') return at + 3;
  return at;
}

struct Word {
  const Byte* end;  // null: none here
  bool has_lower;   // U* L+ matched, else U+ L*
};

// U* L+, else U+ L*, at `at`. U* is greedy, and gives back only when no L follows: then L+ is the
// last caseless character of the run, which is in both classes, and what is after it is left over.
Word ReadWord(const Byte* at, const Byte* end) {
  const Byte* const start = at;
  const Byte* caseless_end = nullptr;
  uint8_t stopped_by = 0;
  while (at < end) {
    const Char next = ReadChar(at, end);
    stopped_by = next.bits;
    if ((next.bits & kUpperRun) == 0) break;
    at += next.length;
    if (next.bits & kCharCaseless) caseless_end = at;
    stopped_by = 0;
  }
  if (stopped_by & kCharLower) return {RunEnd(at, end, kLowerRun), true};
  if (caseless_end != nullptr) return {caseless_end, true};
  return {at > start ? at : nullptr, false};
}

// \s*[\r\n]+ | \s+(?!\S) | \s+, at a space.
const Byte* SpaceEnd(const Byte* at, const Byte* end) {
  const Byte* const start = at;
  const Byte* newline_end = nullptr;
  const Byte* last = at;  // start of the run's last character
  while (at < end) {
    const Char next = ReadChar(at, end);
    if ((next.bits & kCharSpace) == 0) break;
    last = at;
    at += next.length;
    if (next.bits & kCharNewline) newline_end = at;
  }
  if (newline_end != nullptr) return newline_end;
  return at == end || last == start ? at : last;
}

const Byte* PieceEnd(const Byte* at, const Byte* end) {
  const Char first = ReadChar(at, end);
  const Byte* const after = at + first.length;
  if (first.bits & kCharHan) return RunEnd(after, end, kCharHan);
  if (first.bits & kCharPrefix) {
    Word word = ReadWord(after, end);
    // A mark may be the prefix or itself the L+. As the prefix it needs U* L+ after it; the
    // alternative U+ L* comes later than the mark alone.
    if (!word.has_lower && (first.bits & kCharCaseless)) word = {after, true};
    if (word.end != nullptr) return ContractionEnd(word.end, end);
  } else if (first.bits & (kUpperRun | kLowerRun)) {
    return ContractionEnd(ReadWord(at, end).end, end);
  }
  if (first.bits & kCharNumber) {
    const Byte* number_end = after;
    for (int i = 1; i < 3 && number_end < end; ++i) {
      const Char next = ReadChar(number_end, end);
      if ((next.bits & kCharNumber) == 0) break;
      number_end += next.length;
    }
    return number_end;
  }
  const bool spaced = *at == ' ' && after < end && IsSymbol(ReadChar(after, end).bits);
  if (spaced || IsSymbol(first.bits)) {
    const Byte* symbol_end = after;
    while (symbol_end < end) {
      const Char next = ReadChar(symbol_end, end);
      if (!IsSymbol(next.bits)) break;
      symbol_end += next.length;
    }
    while (symbol_end < end && (*symbol_end == '\r' || *symbol_end == '\n')) ++symbol_end;
    return symbol_end;
  }
  if (first.bits & kCharSpace) return SpaceEnd(at, end);
  return after;  // a byte of no character
}

}  // namespace

size_t FirstPieceLength(std::string_view text) {
  if (text.empty()) return 0;
  const auto* start = reinterpret_cast<const Byte*>(text.data());
  return static_cast<size_t>(PieceEnd(start, start + text.size()) - start);
}

}  // namespace baltoro
