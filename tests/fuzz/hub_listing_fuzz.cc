// What a hub says is in a repository: whatever is accepted stays within its folder and can be
// checked.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "pull/listing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& listing :
       {baltoro::ParseHuggingFaceListing(text), baltoro::ParseModelScopeListing(text)}) {
    if (!listing.ok()) {
      BT_CHECK(!listing.status().message().empty());
      continue;
    }
    BT_CHECK(listing.value().files.size() <= baltoro::kListedFilesMax);
    for (const baltoro::RepoFile& file : listing.value().files) {
      BT_CHECK(baltoro::CheckRepoPath(file.path).ok());
      BT_CHECK(file.path.front() != '/' &&
               ("/" + file.path + "/").find("/../") == std::string::npos);
      BT_CHECK(file.bytes >= 0);
      BT_CHECK(baltoro::IsHex(file.sum(), file.sha256.empty() ? 40 : 64));
    }
  }
  return 0;
}
