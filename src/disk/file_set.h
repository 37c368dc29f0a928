#pragma once

// The open files of a checkpoint. All bytes of weights go through here, so that a ReadAhead can
// bring them before they are asked for, and so that they are counted.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"

namespace baltoro {

class ReadAhead;

// More than any file of a checkpoint has: offsets in it are far from where sums overflow.
inline constexpr uint64_t kWeightFileBytesMax = uint64_t{1} << 48;

struct FileRange {
  size_t file = 0;  // of a FileSet
  uint64_t offset = 0;
  uint64_t bytes = 0;
  // Other readers on this machine want parts of it, too narrow to be read alone: it goes through
  // the page cache, so that the disk is asked once for all of them.
  bool shared = false;
  uint64_t end() const { return offset + bytes; }
};

class FileSet {
 public:
  FileSet() = default;
  ~FileSet();
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  // Opens a regular file and returns its number. One thread, as long as nothing is read.
  Result<size_t> Open(const std::string& path);
  // In the place of `path`, of which only the beginning is here, in the file `beginning`: reads of
  // it are refused.
  Result<size_t> OpenBeginning(const std::string& path, const std::string& beginning);

  size_t size() const { return files_.size(); }
  const std::string& path(size_t file) const { return files_[file].path; }
  uint64_t bytes(size_t file) const { return files_[file].file.bytes(); }
  int fd(size_t file) const { return files_[file].file.fd(); }
  // kNotFound for a file of which only the beginning is here; says what to do.
  Status CheckWhole(size_t file) const;
  bool all_whole() const { return all_whole_; }
  // For reads past the page cache, -1 where there are none; the caller closes it.
  int OpenDirect(size_t file) const { return files_[file].file.OpenDirect(); }

  // Reads all of a range into `out`, from memory if a ReadAhead holds it. The file ending early is
  // an error; errors do not name the file. Any thread.
  Status Read(const FileRange& range, void* out) const;

  // What was asked of the system so far, by Read and by every ReadAhead over this set.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  // Of those, what ReadAheads left to the page cache because it is shared.
  int64_t bytes_shared() const { return bytes_shared_.load(std::memory_order_relaxed); }

 private:
  friend class ReadAhead;
  struct File {
    std::string path;
    InputFile file;
    bool whole = true;
  };

  std::vector<File> files_;
  bool all_whole_ = true;
  std::atomic<ReadAhead*> ahead_{nullptr};
  mutable std::atomic<int64_t> bytes_read_{0};
  std::atomic<int64_t> bytes_shared_{0};
};

// Reads exactly `bytes` at `offset`; the file ending early is an error.
Status ReadAt(int fd, uint64_t offset, void* out, size_t bytes);

}  // namespace baltoro
