#pragma once

// A byte-level BPE vocabulary: which byte strings are tokens, and the merging of a piece of text
// into them. The priority of a merge is the id of the token it makes, so there is no list of
// merges. Immutable after Build; any thread may call the const functions.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace baltoro {

using TokenId = int32_t;

// Before Build it holds no token, and no text can be encoded.
class BpeVocabulary {
 public:
  // A longer token is refused: every look-up costs up to this much, and none is longer than 256
  // bytes in the published vocabulary.
  static constexpr size_t kTokenBytesMax = 1024;

  // `tokens[i]` are the bytes of token i. Refuses an empty, too long or repeated token, and a
  // vocabulary without each of the 256 single bytes; the message names the token.
  static Result<BpeVocabulary> Build(const std::vector<std::string>& tokens);

  TokenId size() const { return static_cast<TokenId>(starts_.size()) - 1; }

  // 0 <= id < size().
  std::string_view Bytes(TokenId id) const {
    return {blob_.data() + starts_[id], starts_[id + 1] - starts_[id]};
  }

  // The token of exactly these bytes, or kNone.
  static constexpr TokenId kNone = INT32_MAX;
  TokenId Find(std::string_view bytes) const;

  // Memory that a long piece needs; kept by the caller so that it is allocated once.
  struct Scratch {
    struct Node {
      uint32_t previous, next;  // starts of the neighbouring parts; next is where this one ends
      TokenId id;
      TokenId merged;  // what it and the next part would become, or kNone
    };
    std::vector<Node> nodes;
    std::vector<uint64_t> queue;
    // A longer piece is merged in windows of this many bytes; only tests have a reason to change
    // it.
    size_t window_bytes = 4096;
  };

  // Appends the tokens of one piece: the piece itself if it is a token, else again and again the
  // leftmost pair that makes the lowest id is merged. Linear in time; `piece` is under 4 GiB. (For
  // a vocabulary and a text made to defeat the windows: n log n, and 24 bytes of memory for each
  // byte.)
  void EncodePiece(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Slot {
    uint64_t key;     // the bytes themselves up to 8, else a hash of them
    uint32_t length;  // 0: free
    TokenId id;
  };

  struct Part {
    TokenId id;
    uint32_t length;
  };

  void FindWholeChars(const std::vector<std::string>& tokens);
  Part FirstPart(std::string_view piece, size_t at) const;
  void MergeShort(std::string_view piece, std::vector<TokenId>& out) const;
  void MergeQueued(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;
  void MergeInWindows(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;
  bool StayApart(std::string_view left, std::string_view right, Scratch& scratch) const;
  static uint64_t Mix(uint64_t key, size_t length);

  std::string blob_;
  std::vector<uint32_t> starts_ = {0};  // [size + 1]
  std::vector<Slot> slots_;             // open addressing; a power of two
  int slot_shift_ = 0;
  // Two bits of one word for each token. Most look-ups while merging find nothing, and this, small
  // enough for the nearest caches, says so without a visit to the slots.
  std::vector<uint64_t> filter_;
  int filter_shift_ = 0;
  std::vector<TokenId> pairs_;  // [65536] tokens of two bytes, by first << 8 | second
  TokenId bytes_[256] = {};
  // [65536] By code point, the token of a three-byte character with which merging may begin instead
  // of with its bytes, or kNone. See FindWholeChars.
  std::vector<TokenId> whole_chars_;
  // [65536] By first << 8 | second: where these bytes meet between two characters, some token holds
  // both and only a part of one of the characters.
  std::vector<bool> cuts_;
};

}  // namespace baltoro
