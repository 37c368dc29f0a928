#pragma once

// SHA-256 that is made or throws: OpenSSL's functions want memory and nothing else, and where there
// is none a digest that was not made must not be compared with any, nor told.

#include <openssl/sha.h>

#include <array>
#include <new>
#include <string_view>

namespace baltoro {

using Sha256Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

// What a function of OpenSSL returns that fails for want of memory alone.
inline void MustBeMade(const unsigned char* digest) {
  if (digest == nullptr) throw std::bad_alloc();
}

inline Sha256Digest Sha256(std::string_view text) {
  Sha256Digest digest{};
  MustBeMade(
      SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data()));
  return digest;
}

}  // namespace baltoro
