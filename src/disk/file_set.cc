#include "disk/file_set.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "disk/read_ahead.h"

namespace baltoro {

FileSet::~FileSet() {
  BT_CHECK(ahead_.load() == nullptr);
  for (const File& file : files_) close(file.fd);
}

Result<size_t> FileSet::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kUnavailable;
    return Status(code, path + ": " + std::strerror(errno));
  }
  files_.push_back({.path = path, .fd = fd});
  struct stat info {};
  if (fstat(fd, &info) != 0) return Status(Code::kUnavailable, path + ": " + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path + ": not a regular file");
  files_.back().bytes = static_cast<uint64_t>(info.st_size);
  return files_.size() - 1;
}

Status FileSet::Read(const FileRange& range, void* out) const {
  BT_CHECK(range.file < files_.size());
  if (range.bytes == 0) return {};
  ReadAhead* ahead = ahead_.load(std::memory_order_acquire);
  if (ahead != nullptr && ahead->Copy(range, out)) return {};
  bytes_read_.fetch_add(static_cast<int64_t>(range.bytes), std::memory_order_relaxed);
  return ReadAt(fd(range.file), range.offset, out, range.bytes);
}

Status ReadAt(int fd, uint64_t offset, void* out, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        pread(fd, static_cast<char*>(out) + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status(Code::kUnavailable, std::strerror(errno));
    if (got == 0) {
      return Status(Code::kUnavailable, fmt::format("the file ended at byte {}", offset + done));
    }
    done += static_cast<size_t>(got);
  }
  return {};
}

}  // namespace baltoro
