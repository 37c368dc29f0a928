#include "pull/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/utf8.h"
#include "terminal/safe_text.h"

namespace baltoro {
namespace {

constexpr size_t kSha1Digits = 40, kSha256Digits = 64;
constexpr size_t kPathBytesMax = 1024, kNameBytesMax = 160;  // a sum and a suffix follow the name
constexpr int64_t kFileBytesMax = int64_t{1} << 48;

// Printable, for error messages.
std::string Shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 120)) {
    if (c >= ' ' && c < 127) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

bool IsDotGit(std::string_view part) {
  constexpr std::string_view kName = ".git";
  return std::ranges::equal(part, kName, [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

std::string StringOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// "sha256:..." of some answers, in capitals of others.
std::string Sum(std::string text, size_t digits) {
  if (text.starts_with("sha256:")) text.erase(0, 7);
  for (char& c : text) c = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  return IsHex(text, digits) ? text : "";
}

Result<int64_t> SizeOf(const Json& object, const char* key, const std::string& path) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return InvalidArgument(fmt::format("the listing gives no size of {}", Shown(path)));
  }
  if (!found->is_number_unsigned() || found->get<uint64_t>() > uint64_t{kFileBytesMax}) {
    return InvalidArgument(fmt::format("the listing gives no sensible size of {}", Shown(path)));
  }
  return found->get<int64_t>();
}

Result<Json> ParseAnswer(std::string_view text) {
  const Result<Json> json = ParseJson(text, {.depth = 32, .nodes = 1'000'000});
  if (!json.ok()) return InvalidArgument("the listing is no JSON: " + json.status().message());
  if (!json.value().is_object()) return InvalidArgument("the listing is no JSON object");
  return json;
}

// Adds a file that was read; `out` holds no name twice, and no name that is a folder of another.
class Collector {
 public:
  explicit Collector(RepoListing& out) : out_(out) {}

  Status Add(RepoFile file) {
    BT_RETURN_IF_ERROR(CheckRepoPath(file.path));
    if (file.sum().empty()) {
      return InvalidArgument(fmt::format("the listing gives no checksum of {}", Shown(file.path)));
    }
    if (out_.files.size() == kListedFilesMax) {
      return InvalidArgument(fmt::format("the listing has more than {} files", kListedFilesMax));
    }
    if (!files_.insert(file.path).second) {
      return InvalidArgument(fmt::format("the listing has {} twice", file.path));
    }
    for (size_t at = file.path.find('/'); at != std::string::npos;
         at = file.path.find('/', at + 1)) {
      folders_.insert(file.path.substr(0, at));
    }
    out_.files.push_back(std::move(file));
    return {};
  }

  Status End() const {
    for (const std::string& folder : folders_) {
      if (files_.contains(folder)) {
        return InvalidArgument(fmt::format("the listing has {} as a file and as a folder", folder));
      }
    }
    return {};
  }

 private:
  RepoListing& out_;
  std::set<std::string> files_, folders_;
};

}  // namespace

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

Status CheckRepoPath(std::string_view path) {
  const auto refuse = [&](std::string_view why) {
    return InvalidArgument(
        fmt::format("the repository has a file with the name '{}', which {}: nothing is downloaded",
                    Shown(path), why));
  };
  if (path.empty()) return refuse("is empty");
  if (path.size() > kPathBytesMax) return refuse("is longer than any name of a file");
  if (path.front() == '/') return refuse("is an absolute path");
  if (path.find('\\') != path.npos) return refuse("has a backslash");
  for (size_t at = 0; at < path.size();) {
    char32_t code = 0;
    const size_t length = Utf8Decode(path.substr(at), code);
    if (length == 0) return refuse("is no UTF-8 text");
    if (IsControl(code)) return refuse("has a control character");
    if (IsBidiControl(code)) return refuse("has a character that turns the direction of writing");
    at += length;
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty()) return refuse("has an empty part");
    if (part == "." || part == "..") return refuse("leads out of its folder");
    // Git would run what a repository puts there; some file systems know no capitals.
    if (IsDotGit(part)) return refuse("is Git's own");
    if (part.size() > kNameBytesMax) return refuse("is longer than any name of a file");
    begin = end + 1;
  }
  // What downloads of a folder are recorded in.
  if (path == ".cache" || path.starts_with(".cache/")) return refuse("is that of the record");
  return {};
}

Result<RepoListing> ParseHuggingFaceListing(std::string_view text) {
  BT_ASSIGN_OR_RETURN(const Json json, ParseAnswer(text));
  RepoListing out{.commit = StringOf(json, "sha"), .files = {}};
  if (!IsHex(out.commit, kSha1Digits)) return InvalidArgument("the listing names no commit (sha)");
  const auto files = json.find("siblings");
  if (files == json.end() || !files->is_array()) {
    return InvalidArgument("the listing names no files (siblings)");
  }
  Collector collector(out);
  for (const Json& each : *files) {
    if (!each.is_object()) return InvalidArgument("the listing has a file that is no JSON object");
    RepoFile file{.path = StringOf(each, "rfilename")};
    BT_RETURN_IF_ERROR(CheckRepoPath(file.path));
    const auto lfs = each.find("lfs");
    if (lfs != each.end() && lfs->is_object()) {
      file.sha256 = Sum(StringOf(*lfs, "sha256"), kSha256Digits);
      if (file.sha256.empty()) file.sha256 = Sum(StringOf(*lfs, "oid"), kSha256Digits);
      if (file.sha256.empty()) {
        return InvalidArgument(fmt::format("the listing gives no sha256 of {}", Shown(file.path)));
      }
    } else {
      file.git_sha1 = Sum(StringOf(each, "blobId"), kSha1Digits);
    }
    BT_ASSIGN_OR_RETURN(file.bytes, SizeOf(each, "size", file.path));
    BT_RETURN_IF_ERROR(collector.Add(std::move(file)));
  }
  BT_RETURN_IF_ERROR(collector.End());
  return out;
}

Result<RepoListing> ParseModelScopeListing(std::string_view text) {
  BT_ASSIGN_OR_RETURN(const Json json, ParseAnswer(text));
  const auto data = json.find("Data");
  const auto success = json.find("Success");
  if (success != json.end() && *success == Json(false)) {
    return InvalidArgument("ModelScope says: " + Shown(StringOf(json, "Message")));
  }
  if (data == json.end() || !data->is_object() || !data->contains("Files") ||
      !(*data)["Files"].is_array()) {
    return InvalidArgument("the listing names no files (Data.Files)");
  }
  RepoListing out;
  Collector collector(out);
  for (const Json& each : (*data)["Files"]) {
    if (!each.is_object()) return InvalidArgument("the listing has a file that is no JSON object");
    if (StringOf(each, "Type") == "tree") continue;
    RepoFile file{.path = StringOf(each, "Path")};
    BT_RETURN_IF_ERROR(CheckRepoPath(file.path));
    file.sha256 = Sum(StringOf(each, "Sha256"), kSha256Digits);
    BT_ASSIGN_OR_RETURN(file.bytes, SizeOf(each, "Size", file.path));
    BT_RETURN_IF_ERROR(collector.Add(std::move(file)));
  }
  BT_RETURN_IF_ERROR(collector.End());
  return out;
}

}  // namespace baltoro
