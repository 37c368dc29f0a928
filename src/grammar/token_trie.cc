#include "grammar/token_trie.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace baltoro {

namespace {

// Characters of a plain text; 0 if it is none.
int PlainCharacters(std::string_view text) {
  int count = 0;
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    const size_t length = Utf8ValidLength(text);
    if (length == 0 || byte < 0x20 || byte == '"' || byte == '\\') return 0;
    text.remove_prefix(length);
    ++count;
  }
  return count;
}

}  // namespace

int ByteClass(uint8_t byte) {
  if (byte >= 0x80) return kByteClassNotAscii;
  if (byte >= 'a' && byte <= 'z') return byte <= 'f' ? 0 : 1;
  if (byte >= 'A' && byte <= 'Z') return byte <= 'F' ? 2 : 3;
  if (byte >= '0' && byte <= '9') return byte == '0' ? 4 : 5;
  switch (byte) {
    case ' ':
      return 40;
    case '\t':
      return 41;
    case '\n':
      return 42;
    case '\r':
      return 43;
    default:
      break;
  }
  if (byte < 0x20 || byte == 0x7F) return 44;
  // Each of the 32 marks is a class of its own.
  if (byte <= '/') return 8 + byte - '!';
  if (byte <= '@') return 23 + byte - ':';
  if (byte <= '`') return 30 + byte - '[';
  return 36 + byte - '{';
}

ByteTrie ByteTrie::Make(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    const int order = a.bytes.compare(b.bytes);
    return order != 0 ? order < 0 : a.token < b.token;
  });
  ByteTrie trie;
  trie.nodes.emplace_back();
  trie.tokens.reserve(entries.size());
  std::vector<uint32_t> path = {0};  // nodes from the root to the last entry
  std::string_view last;
  const auto close = [&](size_t depth) {
    while (path.size() > depth + 1) {
      trie.nodes[path.back()].end = static_cast<uint32_t>(trie.nodes.size());
      path.pop_back();
    }
  };
  for (const Entry& entry : entries) {
    BT_CHECK(!entry.bytes.empty() && entry.bytes.size() <= kBytesMax);
    const auto differ =
        std::mismatch(last.begin(), last.end(), entry.bytes.begin(), entry.bytes.end());
    close(static_cast<size_t>(differ.first - last.begin()));
    for (size_t depth = path.size() - 1; depth < entry.bytes.size(); ++depth) {
      Node node;
      node.first_token = node.end_token = static_cast<uint32_t>(trie.tokens.size());
      node.byte = static_cast<uint8_t>(entry.bytes[depth]);
      node.depth = static_cast<uint16_t>(depth + 1);
      path.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back(node);
    }
    trie.tokens.push_back(entry.token);
    trie.nodes[path.back()].end_token = static_cast<uint32_t>(trie.tokens.size());
    last = entry.bytes;
  }
  close(0);
  trie.nodes[0].end = static_cast<uint32_t>(trie.nodes.size());

  trie.characters.reserve(entries.size());
  for (const Entry& entry : entries) {
    trie.characters.push_back(static_cast<uint16_t>(std::count_if(
        entry.bytes.begin(), entry.bytes.end(), [](char c) { return (c & 0xC0) != 0x80; })));
  }
  // Children come after their parents.
  trie.below.resize(trie.nodes.size());
  std::vector<uint32_t> last_at(kBytesMax + 1, 0), parent(trie.nodes.size(), 0);
  for (uint32_t i = 1; i < trie.nodes.size(); ++i) {
    parent[i] = last_at[trie.nodes[i].depth - 1u];
    last_at[trie.nodes[i].depth] = i;
  }
  for (auto i = static_cast<uint32_t>(trie.nodes.size() - 1); i > 0; --i) {
    trie.below[parent[i]] |= trie.below[i] | uint64_t{1} << ByteClass(trie.nodes[i].byte);
  }
  return trie;
}

TokenTrie::TokenTrie(std::span<const std::string_view> texts, const std::vector<bool>& special)
    : vocab_size_(static_cast<int32_t>(texts.size())) {
  BT_CHECK(special.size() == texts.size());
  text_tokens_.resize(words());
  plain_tokens_.resize(words());
  offsets_.push_back(0);
  for (size_t i = 0; i < texts.size(); ++i) {
    const bool fits = texts[i].size() <= ByteTrie::kBytesMax;
    if (!special[i] && !texts[i].empty()) SetBit(text_tokens_, static_cast<TokenId>(i));
    if (!special[i] && fits) bytes_ += texts[i];
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  std::vector<ByteTrie::Entry> plain, rest;
  for (TokenId id = 0; id < vocab_size_; ++id) {
    const std::string_view text = TokenBytes(id);
    if (text.empty()) continue;
    max_token_bytes_ = std::max(max_token_bytes_, static_cast<int>(text.size()));
    if (PlainCharacters(text) > 0) {
      SetBit(plain_tokens_, id);
      plain.push_back({text, id});
    } else {
      rest.push_back({text, id});
    }
  }
  plain_ = ByteTrie::Make(std::move(plain));
  rest_ = ByteTrie::Make(std::move(rest));
}

std::shared_ptr<const TokenTrie> TokenTrie::Make(const Tokenizer& tokenizer, int32_t vocab_size) {
  std::vector<std::string_view> texts(static_cast<size_t>(std::max(vocab_size, 0)));
  std::vector<bool> special(texts.size(), true);
  const int32_t known = std::min(vocab_size, tokenizer.vocab_size());
  for (TokenId id = 0; id < known; ++id) {
    texts[static_cast<size_t>(id)] = tokenizer.TokenBytes(id);
    special[static_cast<size_t>(id)] = tokenizer.IsSpecial(id);
  }
  return std::make_shared<const TokenTrie>(texts, special);
}

std::string_view TokenTrie::TokenBytes(TokenId id) const {
  if (id < 0 || id >= vocab_size_) return {};
  const auto at = static_cast<size_t>(id);
  return std::string_view(bytes_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
}

int64_t TokenTrie::num_bytes() const {
  return static_cast<int64_t>(bytes_.size() + offsets_.size() * sizeof(uint32_t) +
                              2 * words() * sizeof(uint32_t)) +
         plain_.num_bytes() + rest_.num_bytes();
}

}  // namespace baltoro
