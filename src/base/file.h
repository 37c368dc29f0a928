#pragma once

// The one way to the files that people name, by a flag or by naming a model: tools/check_layers.py
// refuses any other. A FIFO, a device or a directory where a file should be is refused at once.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace baltoro {

// What is read whole: more than the longest index of a checkpoint takes.
inline constexpr uint64_t kTextBytesMax = uint64_t{256} << 20;

// A regular file that is open for reading, until the object goes. Any thread may read from fd().
class InputFile {
 public:
  // `flag` is what named the file, and begins the error: "--api-key-file keys.txt: No such file or
  // directory". Errors name the path and the reason; more than `bytes_max` is one. kNotFound where
  // nothing has this name.
  static Result<InputFile> Open(const std::string& path,
                                uint64_t bytes_max,
                                std::string_view flag = {});
  InputFile(InputFile&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_), mode_(other.mode_) {}
  InputFile& operator=(InputFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    std::swap(mode_, other.mode_);
    return *this;
  }
  ~InputFile();

  int fd() const { return fd_; }
  uint64_t bytes() const { return bytes_; }  // when it was opened
  uint32_t mode() const { return mode_; }    // its permissions

  // The same file opened again, for reads past the page cache; -1 where its file system has none.
  // The caller closes it.
  int OpenDirect() const;

 private:
  InputFile(int fd, uint64_t bytes, uint32_t mode) : fd_(fd), bytes_(bytes), mode_(mode) {}
  int fd_ = -1;
  uint64_t bytes_ = 0;
  uint32_t mode_ = 0;
};

// The whole of a regular file, of those under /proc and /sys too, that have no size. Errors are
// those of InputFile::Open; too little memory is one more.
Result<std::string> ReadFile(const std::string& path,
                             uint64_t bytes_max = kTextBytesMax,
                             std::string_view flag = {});
// The same of a file that is already open; errors do not name it.
Result<std::string> ReadWhole(const InputFile& file, uint64_t bytes_max = kTextBytesMax);

// Whether anything has this name, a link that leads nowhere too: opening it says what is wrong.
bool FileExists(const std::string& path);

// Opens /dev/null in place of standard input, output and error where these are closed, so that no
// socket gets their numbers and with them the lines of the log.
void HoldStandardFiles();

}  // namespace baltoro
