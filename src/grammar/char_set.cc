#include "grammar/char_set.h"

#include <algorithm>

namespace baltoro {
namespace {

constexpr char32_t kLastCode = 0x10FFFF;
constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

}  // namespace

CharSet::CharSet(std::initializer_list<CodePointRange> ranges) {
  for (const CodePointRange& range : ranges) Add(range.first, range.last);
}

void CharSet::Add(char32_t first, char32_t last) {
  if (first > last) return;
  if (first <= kLastSurrogate && last >= kFirstSurrogate) {
    if (first < kFirstSurrogate) Add(first, kFirstSurrogate - 1);
    if (last > kLastSurrogate) Add(kLastSurrogate + 1, last);
    return;
  }
  // The first range that touches or follows the new one.
  auto begin = std::lower_bound(
      ranges_.begin(), ranges_.end(), first,
      [](const CodePointRange& range, char32_t code) { return range.last + 1 < code; });
  auto end = begin;
  while (end != ranges_.end() && end->first <= last + 1) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
    ++end;
  }
  begin = ranges_.erase(begin, end);
  ranges_.insert(begin, CodePointRange{first, last});
}

void CharSet::Add(const CharSet& other) {
  for (const CodePointRange& range : other.ranges_) Add(range.first, range.last);
}

CharSet CharSet::Complement() const {
  CharSet out;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) out.Add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLastCode) out.Add(next, kLastCode);
  return out;
}

CharSet CharSet::Without(const CharSet& other) const {
  CharSet outside = Complement();
  outside.Add(other);
  return outside.Complement();
}

bool CharSet::Contains(char32_t code) const {
  const auto found = std::lower_bound(
      ranges_.begin(), ranges_.end(), code,
      [](const CodePointRange& range, char32_t wanted) { return range.last < wanted; });
  return found != ranges_.end() && found->first <= code;
}

}  // namespace baltoro
