#pragma once

// A file that is being downloaded in parts, and the record beside it of how far each part came, so
// that the next attempt, also one of another process, goes on there.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace baltoro {

struct FilePart {
  int64_t begin = 0, end = 0;  // end excluded
  int64_t done = 0;            // bytes from `begin` that are there
  bool operator==(const FilePart&) const = default;
};

class PartialFile {
 public:
  // Makes the file and takes its room on the disk, or opens one that was begun. `bytes` are those
  // of the whole file. A record that does not fit the file begins anew.
  static Result<PartialFile> Open(const std::string& path, int64_t bytes, int64_t part_bytes);
  PartialFile(PartialFile&& other) noexcept;
  PartialFile& operator=(PartialFile&& other) noexcept;
  ~PartialFile();

  // How far it came before this process.
  const std::vector<FilePart>& found_parts() const { return parts_; }
  const std::string& found_etag() const { return etag_; }

  // Any thread, at places of its own.
  Status Write(int64_t offset, std::string_view bytes) const;
  // Records how far it is. One thread at a time.
  Status Save(const std::vector<FilePart>& parts, const std::string& etag) const;

  // Brings the file to the disk under its name, which it replaces; the record goes.
  Status MoveTo(const std::string& path);
  // Removes file and record.
  void Discard();

  const std::string& path() const { return path_; }

 private:
  PartialFile(std::string path, int64_t bytes) : path_(std::move(path)), bytes_(bytes) {}
  void ReadRecord();

  std::string path_;
  int64_t bytes_ = 0;
  int fd_ = -1;
  std::vector<FilePart> parts_;
  std::string etag_;
};

// Parts of `part_bytes` of a file of `bytes`, none of them done; one of an empty file.
std::vector<FilePart> CutIntoParts(int64_t bytes, int64_t part_bytes);

// Writes a small file by way of another name, so that nobody sees half of it. Folders above it are
// made.
Status WriteSmallFile(const std::string& path, std::string_view text);
Status MakeFolders(const std::string& path);

// Holds a lock file until the object goes; kUnavailable where another process holds it.
class FolderLock {
 public:
  static Result<FolderLock> Take(const std::string& path);
  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace baltoro
