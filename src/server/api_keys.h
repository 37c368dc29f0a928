#pragma once

// API keys are kept as SHA-256 digests and compared in constant time, all of them each time.
// Without memory for a digest std::bad_alloc is thrown, as by whatever else takes memory.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/http_message.h"
#include "server/sha256.h"

namespace baltoro {

class ApiKeys {
 public:
  explicit ApiKeys(const std::vector<std::string>& keys);
  // How many different ones there are; 0: everybody is let in.
  size_t count() const { return digests_.size(); }
  // Which client a request is from, by the key that it shows ("Authorization: Bearer KEY", the
  // scheme without case, or "x-api-key: KEY"): 16 bytes, the same for the same key as long as this
  // lives, and of no use to whoever wants the key or compares two servers. Empty: it shows no key
  // of ours. Without keys a client is whoever shows the same credentials, or none.
  std::optional<std::string> ClientOf(const HttpRequest& request) const;

 private:
  bool Has(std::string_view key) const;
  std::string NameOf(std::string_view key) const;

  std::vector<Sha256Digest> digests_;
  Sha256Digest secret_;  // of this process
};

}  // namespace baltoro
