#pragma once

// What a hub says is in a repository. It comes from outside: names that lead out of a folder, sizes
// and sums that are none, and listings without end are refused here.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

inline constexpr size_t kListingBytesMax = size_t{32} << 20;
inline constexpr size_t kListedFilesMax = 20'000;

struct RepoFile {
  std::string path;  // with '/', below the repository's root
  int64_t bytes = 0;
  std::string sha256 = {};    // empty: not known
  std::string git_sha1 = {};  // of git's blob, where there is no sha256

  // The name of the content: of the file in the cache, and in the record beside a folder's files.
  const std::string& sum() const { return sha256.empty() ? git_sha1 : sha256; }
  bool operator==(const RepoFile&) const = default;
};

struct RepoListing {
  std::string commit;  // 40 hexadecimal digits; empty: the hub does not say (ModelScope)
  std::vector<RepoFile> files;
};

// The answer to /api/models/{repo}/revision/{revision}?blobs=true.
Result<RepoListing> ParseHuggingFaceListing(std::string_view text);
// The answer to /api/v1/models/{repo}/repo/files?Revision={revision}&Recursive=true.
Result<RepoListing> ParseModelScopeListing(std::string_view text);

// kInvalidArgument, with the name, for a path that could lie outside of its folder, or that no file
// system takes.
Status CheckRepoPath(std::string_view path);

bool IsHex(std::string_view text, size_t digits);

}  // namespace baltoro
