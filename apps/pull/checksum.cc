#include "pull/checksum.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/file.h"
#include "disk/file_set.h"

namespace baltoro {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;

struct HashCloser {
  void operator()(EVP_MD_CTX* hash) const { EVP_MD_CTX_free(hash); }
};

}  // namespace

Result<std::string> SumOf(const std::string& path,
                          const RepoFile& file,
                          const std::atomic<bool>* stop) {
  BT_ASSIGN_OR_RETURN(const InputFile input, InputFile::Open(path, kWeightFileBytesMax));
  const std::unique_ptr<EVP_MD_CTX, HashCloser> hash(EVP_MD_CTX_new());
  const bool git = file.sha256.empty();
  const EVP_MD* kind = git ? EVP_sha1() : EVP_sha256();
  bool made = hash != nullptr && EVP_DigestInit_ex(hash.get(), kind, nullptr) == 1;
  if (made && git) {
    std::string head = fmt::format("blob {}", input.bytes());
    head.push_back('\0');
    made = EVP_DigestUpdate(hash.get(), head.data(), head.size()) == 1;
  }
  std::vector<char> block(kBlockBytes);
  for (uint64_t at = 0; made && at < input.bytes(); at += block.size()) {
    if (stop != nullptr && stop->load()) return Status(Code::kUnavailable, "stopped");
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(block.size(), input.bytes() - at));
    const Status read = ReadAt(input.fd(), at, block.data(), bytes);
    if (!read.ok()) return Status(read.code(), path + ": " + read.message());
    made = EVP_DigestUpdate(hash.get(), block.data(), bytes) == 1;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned size = 0;
  made = made && EVP_DigestFinal_ex(hash.get(), digest.data(), &size) == 1;
  if (!made) return Status(Code::kResourceExhausted, "no memory for a checksum");
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

}  // namespace baltoro
