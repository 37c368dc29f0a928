#pragma once

// Small vocabularies for tests of the tokenizer, and the plainest BPE there is to compare with.

#include <cstdint>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace baltoro::test {

// The 256 single bytes in an order that is not that of their values, then `merges` joined pairs of
// earlier tokens.
inline std::vector<std::string> RandomVocabulary(int merges, uint32_t seed, int alphabet = 256) {
  std::mt19937 random(seed);
  std::vector<std::string> tokens;
  std::set<std::string> known;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte ^ 0x61));
    known.insert(tokens.back());
  }
  while (tokens.size() < static_cast<size_t>(256 + merges)) {
    const auto any = [&] {
      const size_t bytes = static_cast<size_t>(alphabet);
      size_t at = random() % (bytes + tokens.size() - 256);
      return tokens[at < bytes ? at : at - bytes + 256];
    };
    const std::string joined = any() + any();
    if (joined.size() <= 40 && known.insert(joined).second) tokens.push_back(joined);
  }
  return tokens;
}

// One piece: itself if it is a token, else the leftmost pair with the lowest rank is joined until
// none is a token.
class NaiveBpe {
 public:
  explicit NaiveBpe(const std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) ids_[tokens[i]] = static_cast<int32_t>(i);
  }

  std::vector<int32_t> Encode(std::string_view piece) const {
    std::vector<std::string> parts;
    if (ids_.contains(std::string(piece))) {
      parts.emplace_back(piece);
    } else {
      for (const char c : piece) parts.emplace_back(1, c);
    }
    while (true) {
      int32_t best = INT32_MAX;
      size_t best_at = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ids_.find(parts[i] + parts[i + 1]);
        if (found == ids_.end() || found->second >= best) continue;
        best = found->second;
        best_at = i;
      }
      if (best == INT32_MAX) break;
      parts[best_at] += parts[best_at + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
    }
    std::vector<int32_t> out;
    for (const std::string& part : parts) out.push_back(ids_.at(part));
    return out;
  }

 private:
  std::map<std::string, int32_t> ids_;
};

inline std::string Base64(std::string_view bytes) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += i + k <= bytes.size() ? kAlphabet[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

inline void WriteFile(const std::string& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

// `folder`/tiktoken.model, each token with its index as rank.
inline void WriteVocabulary(const std::string& folder, const std::vector<std::string>& tokens) {
  std::string content;
  for (size_t i = 0; i < tokens.size(); ++i) {
    content += Base64(tokens[i]) + " " + std::to_string(i) + "\n";
  }
  WriteFile(folder + "/tiktoken.model", content);
}

}  // namespace baltoro::test
