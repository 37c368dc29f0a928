#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace baltoro {
namespace {

// Up to this many bytes a scan over all pairs is faster than a queue.
constexpr size_t kShortPieceBytes = 96;

constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;

uint64_t Load(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

uint64_t LoadShort(const char* at, size_t length) {  // 1 to 7 bytes, the rest zero
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
uint64_t KeyOf(std::string_view bytes) {
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

size_t BpeVocabulary::FirstSlot(uint64_t key, size_t length) const {
  const uint64_t mixed = (key ^ (key >> 32) ^ (length << 56)) * kMultiplier;
  return static_cast<size_t>(mixed >> slot_shift_);
}

Result<BpeVocabulary> BpeVocabulary::Build(const std::vector<std::string>& tokens) {
  BpeVocabulary out;
  const auto name = [&](size_t i) {
    return "token " + std::to_string(i) + " (" + Printable(tokens[i]) + ")";
  };
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
  out.starts_.push_back(0);
  const size_t slots = std::bit_ceil(std::max<size_t>(tokens.size() * 2, 512));
  out.slots_.assign(slots, Slot{0, 0, kNone});
  out.slot_shift_ = 64 - std::countr_zero(slots);
  out.pairs_.assign(size_t{1} << 16, kNone);
  std::fill(std::begin(out.bytes_), std::end(out.bytes_), kNone);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& token = tokens[i];
    const auto id = static_cast<TokenId>(i);
    out.blob_ += token;
    out.starts_.push_back(static_cast<uint32_t>(out.blob_.size()));
    const uint64_t key = KeyOf(token);
    size_t slot = out.FirstSlot(key, token.size());
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
  return out;
}

TokenId BpeVocabulary::Find(std::string_view bytes) const {
  const size_t length = bytes.size();
  if (length == 0 || length > kTokenBytesMax) return kNone;
  const uint64_t key = KeyOf(bytes);
  for (size_t slot = FirstSlot(key, length);; slot = (slot + 1) & (slots_.size() - 1)) {
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
    MergeLong(piece, scratch, out);
  }
}

void BpeVocabulary::MergeShort(std::string_view piece, std::vector<TokenId>& out) const {
  // Part i is piece[start[i], start[i + 1]); merged[i] is what it and part i + 1 would become.
  uint8_t start[kShortPieceBytes + 1];
  TokenId id[kShortPieceBytes];
  TokenId merged[kShortPieceBytes];
  size_t parts = piece.size();
  for (size_t i = 0; i < parts; ++i) {
    start[i] = static_cast<uint8_t>(i);
    id[i] = bytes_[static_cast<unsigned char>(piece[i])];
    merged[i] = i + 1 < parts ? pairs_[PairIndex(piece.data() + i)] : kNone;
  }
  start[parts] = static_cast<uint8_t>(parts);
  const auto look_up = [&](size_t i) {
    return Find(piece.substr(start[i], static_cast<size_t>(start[i + 2] - start[i])));
  };
  while (parts > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < parts; ++i) {
      if (merged[i] < merged[best]) best = i;
    }
    if (merged[best] == kNone) break;
    id[best] = merged[best];
    --parts;
    for (size_t i = best + 1; i < parts; ++i) {
      start[i] = start[i + 1];
      id[i] = id[i + 1];
      merged[i] = merged[i + 1];
    }
    start[parts] = start[parts + 1];
    merged[best] = best + 1 < parts ? look_up(best) : kNone;
    if (best > 0) merged[best - 1] = look_up(best - 1);
  }
  out.insert(out.end(), id, id + parts);
}

void BpeVocabulary::MergeLong(std::string_view piece,
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
  const auto entry = [](TokenId merged, uint32_t at) { return uint64_t(merged) << 32 | at; };
  for (uint32_t i = 0; i < size; ++i) {
    const TokenId merged = i + 1 < size ? pairs_[PairIndex(piece.data() + i)] : kNone;
    nodes[i] = {i - 1, i + 1, bytes_[static_cast<unsigned char>(piece[i])], merged};
    if (merged != kNone) queue.push_back(entry(merged, i));
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto pair_up = [&](uint32_t at) {
    const uint32_t end = nodes[at].next < size ? nodes[nodes[at].next].next : size;
    Scratch::Node& node = nodes[at];
    node.merged = node.next < size ? Find(piece.substr(at, end - at)) : kNone;
    if (node.merged == kNone) return;
    queue.push_back(entry(node.merged, at));
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
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
    pair_up(at);
    if (at > 0) pair_up(node.previous);
  }
  for (uint32_t at = 0; at < size; at = nodes[at].next) out.push_back(nodes[at].id);
}

}  // namespace baltoro
