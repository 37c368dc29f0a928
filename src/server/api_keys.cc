#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "net/http_message.h"

namespace baltoro {

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(DigestOf(key));
}

ApiKeys::Digest ApiKeys::DigestOf(std::string_view key) {
  Digest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

bool ApiKeys::Accept(std::string_view authorization) const {
  constexpr std::string_view kScheme = "Bearer ";
  const bool bearer = authorization.size() > kScheme.size() &&
                      EqualsIgnoreCase(authorization.substr(0, kScheme.size()), kScheme);
  return AcceptKey(bearer ? authorization.substr(kScheme.size()) : std::string_view());
}

bool ApiKeys::AcceptKey(std::string_view key) const {
  const Digest given = DigestOf(key);
  int found = 0;
  for (const Digest& known : digests_) {
    found |= static_cast<int>(CRYPTO_memcmp(given.data(), known.data(), known.size()) == 0);
  }
  return !key.empty() && found != 0;
}

}  // namespace baltoro
