#pragma once

// The tokens of a vocabulary as tries over their bytes, for the walks that fill masks. Immutable
// once made: any thread may read.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "request/request.h"
#include "text/tokenizer.h"

namespace baltoro {

// One bit a token.
using TokenBits = std::vector<uint32_t>;
inline void SetBit(std::span<uint32_t> bits, TokenId id) {
  bits[static_cast<size_t>(id) >> 5] |= uint32_t{1} << (id & 31);
}
inline bool HasBit(std::span<const uint32_t> bits, TokenId id) {
  return (bits[static_cast<size_t>(id) >> 5] >> (id & 31) & 1) != 0;
}

// Bytes that grammars seldom tell apart are one of these classes, below 64; all bytes from 0x80 up
// are kByteClassNotAscii.
inline constexpr int kByteClassNotAscii = 45;
int ByteClass(uint8_t byte);

// Nodes in preorder. Node 0 is the root and spells nothing.
struct ByteTrie {
  static constexpr size_t kBytesMax = 1024;  // of an entry
  struct Node {
    uint32_t end = 0;          // one past the last node below this one
    uint32_t first_token = 0;  // in `tokens`: those that end here or below, in preorder
    uint32_t end_token = 0;    // one past those that end here
    uint16_t depth = 0;        // bytes spelled
    uint8_t byte = 0;
  };
  std::vector<Node> nodes;
  std::vector<TokenId> tokens;
  std::vector<uint16_t> characters;  // of each of `tokens`: bytes that do not continue a character
  std::vector<uint64_t> below;       // by node: the classes of all bytes under it, see ByteClass

  uint32_t TokensEnd(uint32_t node) const {  // one past the tokens at or below `node`
    const uint32_t end = nodes[node].end;
    return end < nodes.size() ? nodes[end].first_token : static_cast<uint32_t>(tokens.size());
  }
  int64_t num_bytes() const {
    return static_cast<int64_t>(nodes.size() * (sizeof(Node) + sizeof(uint64_t)) +
                                tokens.size() * (sizeof(TokenId) + sizeof(uint16_t)));
  }

  struct Entry {
    std::string_view bytes;  // at most kBytesMax, not empty
    TokenId token = 0;
  };
  static ByteTrie Make(std::vector<Entry> entries);
};

class TokenTrie {
 public:
  // Token i has the bytes texts[i]; one that is empty or over ByteTrie::kBytesMax bytes long has
  // no place in the tries and is never matched by bytes. `special` ones are matched by their ids
  // alone.
  TokenTrie(std::span<const std::string_view> texts, const std::vector<bool>& special);
  // Ids from the tokenizer's vocabulary up to `vocab_size` are special; those beyond `vocab_size`
  // are left out.
  static std::shared_ptr<const TokenTrie> Make(const Tokenizer& tokenizer, int32_t vocab_size);

  int32_t vocab_size() const { return vocab_size_; }
  size_t words() const { return (static_cast<size_t>(vocab_size_) + 31) / 32; }
  // Empty for those that are never matched by bytes.
  std::string_view TokenBytes(TokenId id) const;
  // All that are not special.
  const TokenBits& text_tokens() const { return text_tokens_; }
  int max_token_bytes() const { return max_token_bytes_; }

  // A character is plain that stands for itself in a JSON string: all but '"', '\' and those below
  // U+0020. Plain tokens are whole such characters.
  const ByteTrie& plain() const { return plain_; }
  const ByteTrie& rest() const { return rest_; }
  const TokenBits& plain_tokens() const { return plain_tokens_; }

  int64_t num_bytes() const;

 private:
  int32_t vocab_size_ = 0;
  int max_token_bytes_ = 0;
  std::string bytes_;              // of all tokens
  std::vector<uint32_t> offsets_;  // [vocab_size + 1] into bytes_
  TokenBits text_tokens_, plain_tokens_;
  ByteTrie plain_, rest_;
};

}  // namespace baltoro
