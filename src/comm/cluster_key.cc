#include "comm/cluster_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace baltoro {

Digest Sign(std::span<const std::byte> key, std::span<const std::span<const std::byte>> parts) {
  std::vector<unsigned char> message;
  for (const std::span<const std::byte> part : parts) {
    for (int shift = 0; shift < 64; shift += 8) {
      message.push_back(static_cast<unsigned char>(uint64_t{part.size()} >> shift));
    }
    for (const std::byte byte : part) message.push_back(static_cast<unsigned char>(byte));
  }
  Digest digest{};
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), message.data(), message.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &size);
  BT_CHECK(made != nullptr && size == digest.size());
  return digest;
}

bool SameDigest(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void FillRandom(std::span<std::byte> bytes) {
  BT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()),
                      static_cast<int>(bytes.size())) == 1);
}

}  // namespace baltoro
