#include <fmt/format.h>

#include "counted/work_case.h"
#include "pull/listing.h"

namespace baltoro::work {
namespace {

const std::string kSum(40, 'a');

Work HubListing(size_t size) {
  const auto file = [](size_t i) {
    return fmt::format(R"({{"rfilename":"part {}/of/{}.safetensors","size":1,"blobId":"{}"}})",
                       i % 100, i, kSum);
  };
  return [text = fmt::format(R"({{"sha":"{}","siblings":[{}]}})", kSum, Listed(size, file)), size] {
    BT_CHECK(Must(ParseHuggingFaceListing(text)).files.size() == size);
  };
}

// One name of many folders.
Work RepoPath(size_t size) {
  return [path = Times(size, "a/") + "b"] {
    for (int i = 0; i < 100; ++i) BT_CHECK(CheckRepoPath(path).ok());
  };
}

}  // namespace

std::vector<WorkCase> PullCases() {
  return {{"pull_listing", 1000, HubListing}, {"pull_path", 120, RepoPath}};
}

}  // namespace baltoro::work
