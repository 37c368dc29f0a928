#pragma once

// API keys are kept as SHA-256 digests and compared in constant time, all of them each time.

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace baltoro {

class ApiKeys {
 public:
  explicit ApiKeys(const std::vector<std::string>& keys);
  bool empty() const { return digests_.empty(); }
  // `authorization`: the header's value; the scheme "Bearer" is compared without case.
  bool Accept(std::string_view authorization) const;
  bool AcceptKey(std::string_view key) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest DigestOf(std::string_view key);
  std::vector<Digest> digests_;
};

}  // namespace baltoro
