#include "disk/file_set.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "disk/read_ahead.h"

namespace baltoro {

FileSet::~FileSet() {
  BT_CHECK(ahead_.load() == nullptr);
}

Result<size_t> FileSet::Open(const std::string& path) {
  BT_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path, kWeightFileBytesMax));
  files_.push_back({.path = path, .file = std::move(file)});
  return files_.size() - 1;
}

Result<size_t> FileSet::OpenBeginning(const std::string& path, const std::string& beginning) {
  BT_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(beginning, kWeightFileBytesMax));
  files_.push_back({.path = path, .file = std::move(file), .whole = false});
  all_whole_ = false;
  return files_.size() - 1;
}

Status FileSet::CheckWhole(size_t file) const {
  BT_CHECK(file < files_.size());
  if (files_[file].whole) return {};
  return Status(Code::kNotFound,
                fmt::format("{}: only its header is here, as of a download for another node or "
                            "layout: run `baltoro pull` with the layout of this server, or without "
                            "one for all files",
                            files_[file].path));
}

Status FileSet::Read(const FileRange& range, void* out) const {
  BT_CHECK(range.file < files_.size());
  if (range.bytes == 0) return {};
  BT_RETURN_IF_ERROR(CheckWhole(range.file));
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
