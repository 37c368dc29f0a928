#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace baltoro {
namespace {

// Up to this many bytes a scan over all pairs is faster than a queue.
constexpr int kShortIndexBits = 7;
constexpr size_t kShortPieceBytes = size_t{1} << kShortIndexBits;
constexpr size_t kTokensMax = size_t{1} << (31 - kShortIndexBits);

constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;

uint64_t Load(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

[[gnu::always_inline]] inline uint64_t LoadShort(const char* at,
                                                 size_t length) {  // 1 to 7 bytes, the rest zero
  if (length >= 4) {
    uint32_t low, high;
    std::memcpy(&low, at, 4);
    std::memcpy(&high, at + length - 4, 4);
    return low | uint64_t{high} << (8 * (length - 4));
  }
  const auto byte = [at](size_t i) {
    return uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  };
  return byte(0) | byte(length / 2) | byte(length - 1);
}

// Exact up to 8 bytes; a hash beyond, of the whole words and of the last one, which may overlap.
[[gnu::always_inline]] inline uint64_t KeyOf(std::string_view bytes) {
  const char* at = bytes.data();
  const size_t length = bytes.size();
  if (length < 8) return LoadShort(at, length);
  if (length == 8) return Load(at);
  uint64_t hash = 0;
  for (const char* last = at + length - 8; at < last; at += 8) {
    hash = (hash ^ Load(at)) * kMultiplier;
    hash ^= hash >> 32;
  }
  return (hash ^ Load(bytes.data() + length - 8)) * kMultiplier;
}

uint64_t FilterBits(uint64_t mixed) {
  return uint64_t{1} << (mixed & 63) | uint64_t{1} << (mixed >> 6 & 63);
}

bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// The low bits of a byte of UTF-8.
uint32_t LeadBits(char c) {
  return static_cast<unsigned char>(c) & 0x0Fu;
}
uint32_t ContinuationBits(char c) {
  return static_cast<unsigned char>(c) & 0x3Fu;
}

bool LeadsThree(char c) {
  return (static_cast<unsigned char>(c) & 0xF0) == 0xE0;
}

// True if bytes of the form of a three-byte character start at `at`; `code` is its code point.
bool IsThreeBytes(std::string_view text, size_t at, uint32_t& code) {
  if (!LeadsThree(text[at]) || text.size() - at < 3) return false;
  if (!IsContinuation(text[at + 1]) || !IsContinuation(text[at + 2])) return false;
  code = LeadBits(text[at]) << 12 | ContinuationBits(text[at + 1]) << 6 |
         ContinuationBits(text[at + 2]);
  return true;
}

size_t PairIndex(const char* at) {
  return static_cast<size_t>(static_cast<unsigned char>(at[0])) << 8 |
         static_cast<unsigned char>(at[1]);
}

std::string Printable(std::string_view bytes) {
  std::string out = "\"";
  for (const char c : bytes.substr(0, 32)) {
    constexpr char kHex[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\') {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out + (bytes.size() > 32 ? "...\"" : "\"");
}

}  // namespace

[[gnu::always_inline]] inline uint64_t BpeVocabulary::Mix(uint64_t key, size_t length) {
  const uint64_t mixed = (key ^ (key >> 32) ^ (length << 56)) * kMultiplier;
  return mixed ^ mixed >> 32;
}

Result<BpeVocabulary> BpeVocabulary::Build(const std::vector<std::string>& tokens) {
  BpeVocabulary out;
  const auto name = [&](size_t i) {
    return "token " + std::to_string(i) + " (" + Printable(tokens[i]) + ")";
  };
  if (tokens.size() >= kTokensMax) {
    return InvalidArgument("the vocabulary has " + std::to_string(tokens.size()) +
                           " tokens, the limit is " + std::to_string(kTokensMax - 1));
  }
  size_t bytes_total = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].empty()) return InvalidArgument("token " + std::to_string(i) + " is empty");
    if (tokens[i].size() > kTokenBytesMax) {
      return InvalidArgument(name(i) + " has " + std::to_string(tokens[i].size()) +
                             " bytes, the limit is " + std::to_string(kTokenBytesMax));
    }
    bytes_total += tokens[i].size();
  }
  if (bytes_total > UINT32_MAX) return InvalidArgument("the vocabulary is over 4 GiB");

  out.blob_.reserve(bytes_total);
  out.starts_.reserve(tokens.size() + 1);
  const size_t slots = std::bit_ceil(std::max<size_t>(tokens.size() * 2, 512));
  out.slots_.assign(slots, Slot{0, 0, kNone});
  out.slot_shift_ = 64 - std::countr_zero(slots);
  out.filter_.assign(slots / 16, 0);  // 8 bits and more for each token
  out.filter_shift_ = out.slot_shift_ + 4;
  out.pairs_.assign(size_t{1} << 16, kNone);
  std::fill(std::begin(out.bytes_), std::end(out.bytes_), kNone);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& token = tokens[i];
    const auto id = static_cast<TokenId>(i);
    out.blob_ += token;
    out.starts_.push_back(static_cast<uint32_t>(out.blob_.size()));
    const uint64_t key = KeyOf(token);
    const uint64_t mixed = Mix(key, token.size());
    out.filter_[mixed >> out.filter_shift_] |= FilterBits(mixed);
    size_t slot = mixed >> out.slot_shift_;
    for (; out.slots_[slot].length != 0; slot = (slot + 1) & (slots - 1)) {
      const Slot& other = out.slots_[slot];
      if (other.key == key && tokens[static_cast<size_t>(other.id)] == token) {
        return InvalidArgument(name(i) + " repeats token " + std::to_string(other.id));
      }
    }
    out.slots_[slot] = {key, static_cast<uint32_t>(token.size()), id};
    if (token.size() == 1) out.bytes_[static_cast<unsigned char>(token[0])] = id;
    if (token.size() == 2) out.pairs_[PairIndex(token.data())] = id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (out.bytes_[byte] == kNone) {
      return InvalidArgument("no token for the single byte " +
                             Printable(std::string(1, static_cast<char>(byte))));
    }
  }
  out.FindWholeChars(tokens);
  return out;
}

// A character of three bytes may be taken as one part from the start, which saves most of the work
// on Chinese, if merging cannot tell the difference:
// - alone, its bytes merge to one token;
// - every longer token around it has a higher id than both of these merges;
// - at the place where it stands, no token reaches from outside into a part of it (FirstPart looks
//   at the bytes on both sides of its ends).
// While it is not whole, one of its own merges is then always to be done before any merge that its
// being whole would make possible, and all merges until it is whole are the same.
void BpeVocabulary::FindWholeChars(const std::vector<std::string>& tokens) {
  whole_chars_.assign(size_t{1} << 16, kNone);
  cuts_.assign(size_t{1} << 16, false);
  std::vector<TokenId> highest_merge(size_t{1} << 16, kNone);
  uint32_t code = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& token = tokens[i];
    if (token.size() == 3 && IsThreeBytes(token, 0, code)) {
      const TokenId first =
          std::min(pairs_[PairIndex(token.data())], pairs_[PairIndex(token.data() + 1)]);
      if (first == kNone) continue;
      whole_chars_[code] = static_cast<TokenId>(i);
      highest_merge[code] = std::max(first, static_cast<TokenId>(i));
      continue;
    }
    // It begins with the end of a character, or ends with the beginning of one.
    size_t head = 0;
    while (head < token.size() && IsContinuation(token[head])) ++head;
    if (head > 0 && head < token.size()) cuts_[PairIndex(token.data() + head - 1)] = true;
    size_t last = token.size() - 1;
    while (last > 0 && IsContinuation(token[last])) --last;
    if (last > 0 && LeadsThree(token[last]) && token.size() - last < 3) {
      cuts_[PairIndex(token.data() + last - 1)] = true;
    }
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (size_t at = 0; tokens[i].size() > 3 && at < tokens[i].size(); ++at) {
      if (!IsThreeBytes(tokens[i], at, code)) continue;
      if (static_cast<TokenId>(i) < highest_merge[code]) whole_chars_[code] = kNone;
    }
  }
}

BpeVocabulary::Part BpeVocabulary::FirstPart(std::string_view piece, size_t at) const {
  const Part byte{bytes_[static_cast<unsigned char>(piece[at])], 1};
  uint32_t code = 0;
  if (!IsThreeBytes(piece, at, code) || whole_chars_[code] == kNone) return byte;
  if (at > 0 && cuts_[PairIndex(piece.data() + at - 1)]) return byte;
  const size_t end = at + 3;
  if (end < piece.size() && (IsContinuation(piece[end]) || cuts_[PairIndex(&piece[end - 1])])) {
    return byte;
  }
  return {whole_chars_[code], 3};
}

TokenId BpeVocabulary::Find(std::string_view bytes) const {
  const size_t length = bytes.size();
  if (length == 2) return pairs_[PairIndex(bytes.data())];
  if (length == 0 || length > kTokenBytesMax) return kNone;
  const uint64_t key = KeyOf(bytes);
  const uint64_t mixed = Mix(key, length);
  if (const uint64_t bits = FilterBits(mixed); (filter_[mixed >> filter_shift_] & bits) != bits) {
    return kNone;
  }
  for (size_t slot = mixed >> slot_shift_;; slot = (slot + 1) & (slots_.size() - 1)) {
    const Slot& found = slots_[slot];
    if (found.length == 0) return kNone;
    if (found.key != key || found.length != length) continue;
    if (length <= 8 || Bytes(found.id) == bytes) return found.id;
  }
}

void BpeVocabulary::EncodePiece(std::string_view piece,
                                Scratch& scratch,
                                std::vector<TokenId>& out) const {
  if (piece.size() == 1) {
    out.push_back(bytes_[static_cast<unsigned char>(piece[0])]);
    return;
  }
  if (const TokenId whole = Find(piece); whole != kNone) {
    out.push_back(whole);
  } else if (piece.size() <= kShortPieceBytes) {
    MergeShort(piece, out);
  } else {
    MergeInWindows(piece, scratch, out);
  }
}

void BpeVocabulary::MergeShort(std::string_view piece, std::vector<TokenId>& out) const {
  // A part lives at the index where it starts. Its priority is that of joining it with the next
  // part: the id of the result above the index, so that the least of all is the leftmost of the
  // best and says where it is. Scanned without branches, in whole groups of kGroup.
  constexpr size_t kGroup = 16;
  constexpr int32_t kNever = INT32_MAX;
  alignas(64) int32_t priority[kShortPieceBytes];
  TokenId id[kShortPieceBytes];
  uint8_t next[kShortPieceBytes];
  uint8_t previous[kShortPieceBytes + 1];
  const size_t size = piece.size();
  const size_t scanned = (size + kGroup - 1) / kGroup * kGroup;
  const auto priority_of = [](TokenId merged, size_t at) {
    return merged == kNone ? kNever : merged << kShortIndexBits | static_cast<int32_t>(at);
  };
  const auto pair_up = [&](size_t at) {
    const size_t middle = next[at];
    priority[at] =
        middle < size ? priority_of(Find(piece.substr(at, next[middle] - at)), at) : kNever;
  };
  std::fill(priority, priority + scanned, kNever);
  for (size_t at = 0; at < size;) {
    const Part part = FirstPart(piece, at);
    id[at] = part.id;
    next[at] = static_cast<uint8_t>(at + part.length);
    previous[next[at]] = static_cast<uint8_t>(at);
    at = next[at];
  }
  for (size_t at = 0; at < size; at = next[at]) pair_up(at);
  while (true) {
    int32_t least[kGroup];
    std::copy(priority, priority + kGroup, least);
    for (size_t group = kGroup; group < scanned; group += kGroup) {
      for (size_t k = 0; k < kGroup; ++k) least[k] = std::min(least[k], priority[group + k]);
    }
    const int32_t best = *std::min_element(least, least + kGroup);
    if (best == kNever) break;
    const auto at = static_cast<size_t>(best & ((1 << kShortIndexBits) - 1));
    id[at] = best >> kShortIndexBits;
    priority[next[at]] = kNever;
    next[at] = next[next[at]];
    previous[next[at]] = static_cast<uint8_t>(at);
    pair_up(at);
    if (at > 0) pair_up(previous[at]);
  }
  for (size_t at = 0; at < size; at = next[at]) out.push_back(id[at]);
}

void BpeVocabulary::MergeQueued(std::string_view piece,
                                Scratch& scratch,
                                std::vector<TokenId>& out) const {
  BT_CHECK(piece.size() < UINT32_MAX);
  const auto size = static_cast<uint32_t>(piece.size());
  // A node lives at the index where its part starts. The queue holds (merged id, start), lowest
  // first; an entry is stale when its node was swallowed or pairs otherwise by now, which
  // `merged` tells, since no part ever gets the same `merged` twice.
  std::vector<Scratch::Node>& nodes = scratch.nodes;
  std::vector<uint64_t>& queue = scratch.queue;
  nodes.resize(size);
  queue.clear();
  for (uint32_t at = 0, previous = 0; at < size;) {
    const Part part = FirstPart(piece, at);
    nodes[at] = {previous, at + part.length, part.id, kNone};
    previous = at;
    at += part.length;
  }
  // True if a pair of parts begins at `at`; it is then the last of the queue.
  const auto pair_up = [&](uint32_t at) {
    Scratch::Node& node = nodes[at];
    node.merged = node.next < size ? Find(piece.substr(at, nodes[node.next].next - at)) : kNone;
    if (node.merged == kNone) return false;
    queue.push_back(uint64_t(node.merged) << 32 | at);
    return true;
  };
  const auto sift_up = [&] { std::push_heap(queue.begin(), queue.end(), std::greater<>()); };
  for (uint32_t at = 0; at < size; at = nodes[at].next) pair_up(at);
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  while (!queue.empty()) {
    const uint64_t top = queue.front();
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    queue.pop_back();
    const auto at = static_cast<uint32_t>(top);
    Scratch::Node& node = nodes[at];
    if (static_cast<TokenId>(top >> 32) != node.merged) continue;
    Scratch::Node& swallowed = nodes[node.next];
    node.id = node.merged;
    node.next = swallowed.next;
    swallowed.merged = kNone;
    if (node.next < size) nodes[node.next].previous = at;
    if (pair_up(at)) sift_up();
    if (at > 0 && pair_up(node.previous)) sift_up();
  }
  for (uint32_t at = 0; at < size; at = nodes[at].next) out.push_back(nodes[at].id);
}

// If a row of tokens is such that the bytes of each two neighbours merge to these two, then merging
// the whole gives this row. (Else there would be a first merge over a boundary. Until then each
// token's bytes were merged as they are alone, so the same merge would come first when the two at
// that boundary are merged without the rest.) So windows may be merged one by one, each starting
// where a token of the one before ends, if only the two tokens where they meet are checked. The end
// of a window is thrown away, because what it was cut off from may change its tokens.
void BpeVocabulary::MergeInWindows(std::string_view piece,
                                   Scratch& scratch,
                                   std::vector<TokenId>& out) const {
  const size_t first = out.size();
  for (size_t start = 0; piece.size() > scratch.window_bytes;) {
    const std::string_view window = piece.substr(start, scratch.window_bytes);
    const size_t begun = out.size();
    MergeQueued(window, scratch, out);
    if (begun > first && !StayApart(Bytes(out[begun - 1]), Bytes(out[begun]), scratch)) break;
    if (start + window.size() == piece.size()) return;
    const size_t limit = start + window.size() - window.size() / 8;
    size_t kept = begun;
    while (start + Bytes(out[kept]).size() <= limit) start += Bytes(out[kept++]).size();
    if (kept == begun) break;
    out.resize(kept);
  }
  out.resize(first);
  MergeQueued(piece, scratch, out);
}

// True if the bytes of two tokens, put together, merge to these two.
bool BpeVocabulary::StayApart(std::string_view left,
                              std::string_view right,
                              Scratch& scratch) const {
  std::string both(left);
  both += right;
  std::vector<TokenId> merged;
  if (both.size() <= kShortPieceBytes) {
    MergeShort(both, merged);
  } else {
    MergeQueued(both, scratch, merged);
  }
  return merged.size() == 2 && Bytes(merged[0]) == left && Bytes(merged[1]) == right;
}

}  // namespace baltoro
