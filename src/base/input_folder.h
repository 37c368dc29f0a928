#pragma once

// Files of one folder, by names that strangers give: nothing outside of it is read, whatever the
// name says and whatever links lie there, also while somebody exchanges them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace baltoro {

class InputFolder {
 public:
  // `flag` named it, and begins the error. kUnavailable too where the kernel cannot keep to a
  // folder (openat2: Linux 5.6).
  static Result<InputFolder> Open(const std::string& path, std::string_view flag);
  InputFolder(InputFolder&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        given_(std::move(other.given_)),
        real_(std::move(other.real_)) {}
  InputFolder& operator=(InputFolder&&) = delete;
  ~InputFolder();

  // The rest of an absolute path that begins with the folder, by the name that it was opened with
  // or its real one; nothing where the path is elsewhere. Neither "." nor ".." is understood.
  std::optional<std::string> Below(std::string_view path) const;

  // The whole of a regular file, whose path from the folder on is `name`. Links are followed as
  // long as they stay in the folder. Files that the kernel makes up (/proc, /sys) are none, and
  // neither are empty ones. kInvalidArgument with a sentence that begins with "the file" and names
  // no path; kResourceExhausted. Any thread.
  Result<std::string> Read(const std::string& name, uint64_t bytes_max) const;

 private:
  InputFolder(int fd, std::string given, std::string real)
      : fd_(fd), given_(std::move(given)), real_(std::move(real)) {}

  int fd_ = -1;
  std::string given_, real_;  // absolute, without a slash at the end: of "/" nothing is left
};

}  // namespace baltoro
