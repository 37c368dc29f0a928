#include "chat/history_file.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/utf8.h"
#include "chat/private_file.h"

namespace baltoro {
namespace {

constexpr uint64_t kFileBytesMax =
    uint64_t{2} * HistoryFile::kLinesMax * HistoryFile::kLineBytesMax;

bool Kept(std::string_view line) {
  return !line.empty() && line.size() <= HistoryFile::kLineBytesMax &&
         line.find('\n') == std::string_view::npos && IsValidUtf8(line);
}

}  // namespace

Result<std::vector<std::string>> HistoryFile::Load() {
  std::vector<std::string> lines;
  if (path_.empty()) return lines;
  // Until it is known that the file is one of ours.
  const std::string path = std::exchange(path_, "");
  if (!FileExists(path)) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return Status(Code::kUnavailable, folder.string() + ": " + error.message());
    path_ = path;
    return lines;
  }
  BT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kFileBytesMax));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (Kept(text.substr(begin, end - begin))) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  const bool grown = lines.size() >= 2 * kLinesMax || text.size() > kFileBytesMax / 2;
  if (lines.size() > kLinesMax) lines.erase(lines.begin(), lines.end() - kLinesMax);
  if (grown) {
    std::string newest;
    for (const std::string& line : lines) newest += line + "\n";
    BT_RETURN_IF_ERROR(ReplacePrivate(path, newest));
  }
  path_ = path;
  return lines;
}

Status HistoryFile::Add(std::string_view line) {
  if (path_.empty() || !Kept(line)) return {};
  return AppendPrivate(path_, std::string(line) + "\n");
}

}  // namespace baltoro
