#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>

#include "base/check.h"

namespace baltoro {

namespace {

constexpr size_t kNameBytes = 16;
constexpr std::string_view kBearer = "Bearer ";

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  BT_CHECK(RAND_bytes(secret_.data(), static_cast<int>(secret_.size())) == 1);
  for (const std::string& key : keys) {
    const Sha256Digest digest = Sha256(key);
    if (std::ranges::count(digests_, digest) == 0) digests_.push_back(digest);
  }
}

std::optional<std::string> ApiKeys::ClientOf(const HttpRequest& request) const {
  const std::string_view authorization = request.Header("authorization");
  const std::string_view plain = request.Header("x-api-key");
  if (digests_.empty()) return NameOf(authorization.empty() ? plain : authorization);
  const bool bearer = authorization.size() > kBearer.size() &&
                      EqualsIgnoreCase(authorization.substr(0, kBearer.size()), kBearer);
  const std::string_view shown = bearer ? authorization.substr(kBearer.size()) : std::string_view();
  // The key that lets a request in is the one that names its client.
  if (Has(shown)) return NameOf(shown);
  if (Has(plain)) return NameOf(plain);
  return std::nullopt;
}

bool ApiKeys::Has(std::string_view key) const {
  const Sha256Digest given = Sha256(key);
  int found = 0;
  for (const Sha256Digest& known : digests_) {
    found |= static_cast<int>(CRYPTO_memcmp(given.data(), known.data(), known.size()) == 0);
  }
  return !key.empty() && found != 0;
}

std::string ApiKeys::NameOf(std::string_view key) const {
  Sha256Digest name{};
  unsigned int size = 0;
  MustBeMade(HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
                  reinterpret_cast<const unsigned char*>(key.data()), key.size(), name.data(),
                  &size));
  return {name.begin(), name.begin() + kNameBytes};
}

}  // namespace baltoro
