#include "pull/partial_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecordSuffix = ".json";
constexpr uint64_t kRecordBytesMax = 8 << 20;
constexpr int64_t kPartsMax = 100'000;

Status Failed(const std::string& path, int error) {
  const Code code = error == ENOSPC || error == EDQUOT || error == EFBIG ? Code::kResourceExhausted
                                                                         : Code::kNotFound;
  return Status(code, fmt::format("{}: {}", path, std::strerror(error)));
}

Status WriteAt(int fd, int64_t offset, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return Failed(path, put < 0 ? errno : ENOSPC);
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += put;
  }
  return {};
}

}  // namespace

std::vector<FilePart> CutIntoParts(int64_t bytes, int64_t part_bytes) {
  part_bytes = std::max(part_bytes, (bytes + kPartsMax - 1) / kPartsMax);
  std::vector<FilePart> parts;
  for (int64_t begin = 0; begin < bytes; begin += part_bytes) {
    parts.push_back({.begin = begin, .end = std::min(bytes, begin + part_bytes)});
  }
  if (parts.empty()) parts.push_back({});
  return parts;
}

Result<PartialFile> PartialFile::Open(const std::string& path, int64_t bytes, int64_t part_bytes) {
  BT_RETURN_IF_ERROR(MakeFolders(fs::path(path).parent_path().string()));
  PartialFile file(path, bytes);
  file.fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file.fd_ < 0) return Failed(path, errno);
  struct stat status = {};
  if (fstat(file.fd_, &status) != 0) return Failed(path, errno);
  if (!S_ISREG(status.st_mode)) return Failed(path, EINVAL);
  if (status.st_size == bytes) file.ReadRecord();
  if (!file.parts_.empty()) return file;
  if (ftruncate(file.fd_, bytes) != 0) return Failed(path, errno);
  // Room that is not there is told before anything is fetched, where the file system can say so.
  if (bytes > 0 && fallocate(file.fd_, 0, 0, bytes) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS && errno != EINVAL) {
    const Status full = Failed(path, errno);
    file.Discard();
    return full;
  }
  file.parts_ = CutIntoParts(bytes, part_bytes);
  return file;
}

PartialFile::PartialFile(PartialFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(other.bytes_),
      fd_(std::exchange(other.fd_, -1)),
      parts_(std::move(other.parts_)),
      etag_(std::move(other.etag_)) {}

PartialFile& PartialFile::operator=(PartialFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  std::swap(parts_, other.parts_);
  std::swap(etag_, other.etag_);
  return *this;
}

PartialFile::~PartialFile() {
  if (fd_ >= 0) close(fd_);
}

void PartialFile::ReadRecord() {
  const Result<std::string> text = ReadFile(path_ + kRecordSuffix, kRecordBytesMax);
  if (!text.ok()) return;
  const Result<Json> json = ParseJson(text.value());
  if (!json.ok() || !json.value().is_object()) return;
  const Json& record = json.value();
  const auto number = [&](const char* key) {
    const auto found = record.find(key);
    return found != record.end() && found->is_number_unsigned() ? found->get<int64_t>() : -1;
  };
  const int64_t part_bytes = number("part_bytes");
  const auto done = record.find("done");
  if (number("bytes") != bytes_ || part_bytes < 1 || done == record.end() || !done->is_array())
    return;
  std::vector<FilePart> parts = CutIntoParts(bytes_, part_bytes);
  if (done->size() != parts.size()) return;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& each = (*done)[i];
    if (!each.is_number_unsigned() ||
        each.get<uint64_t>() > uint64_t(parts[i].end - parts[i].begin)) {
      return;
    }
    parts[i].done = each.get<int64_t>();
  }
  const auto etag = record.find("etag");
  if (etag != record.end() && etag->is_string()) etag_ = etag->get<std::string>();
  parts_ = std::move(parts);
}

Status PartialFile::Write(int64_t offset, std::string_view bytes) const {
  BT_CHECK(offset >= 0 && offset + static_cast<int64_t>(bytes.size()) <= bytes_);
  return WriteAt(fd_, offset, bytes, path_);
}

Status PartialFile::Save(const std::vector<FilePart>& parts, const std::string& etag) const {
  Json done = Json::array();
  for (const FilePart& part : parts) done.push_back(part.done);
  const int64_t part_bytes = std::max<int64_t>(1, parts.front().end - parts.front().begin);
  const Json record = {
      {"bytes", bytes_}, {"part_bytes", part_bytes}, {"etag", etag}, {"done", std::move(done)}};
  return WriteSmallFile(path_ + kRecordSuffix,
                        record.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Status PartialFile::MoveTo(const std::string& path) {
  BT_RETURN_IF_ERROR(MakeFolders(fs::path(path).parent_path().string()));
  if (fsync(fd_) != 0) return Failed(path_, errno);
  if (rename(path_.c_str(), path.c_str()) != 0) return Failed(path, errno);
  unlink((path_ + kRecordSuffix).c_str());
  return {};
}

void PartialFile::Discard() {
  unlink(path_.c_str());
  unlink((path_ + kRecordSuffix).c_str());
}

Status MakeFolders(const std::string& path) {
  std::error_code error;
  if (!path.empty()) fs::create_directories(path, error);
  return error ? Status(Code::kNotFound, path + ": " + error.message()) : Status();
}

Status WriteSmallFile(const std::string& path, std::string_view text) {
  BT_RETURN_IF_ERROR(MakeFolders(fs::path(path).parent_path().string()));
  const std::string draft = fmt::format("{}.{}~", path, getpid());
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return Failed(draft, errno);
  const Status written = WriteAt(fd, 0, text, draft);
  const bool closed = close(fd) == 0;
  if (!written.ok() || !closed || rename(draft.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(draft.c_str());
    return written.ok() ? Failed(path, error) : written;
  }
  return {};
}

Result<FolderLock> FolderLock::Take(const std::string& path) {
  BT_RETURN_IF_ERROR(MakeFolders(fs::path(path).parent_path().string()));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return Failed(path, errno);
  FolderLock lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
    return lock;  // or none is to be had
  return Status(
      Code::kUnavailable,
      fmt::format("another baltoro pull is at work there (it holds {}): wait for it", path));
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace baltoro
