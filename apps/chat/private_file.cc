#include "chat/private_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace baltoro {
namespace {

Status Failed(const std::string& path, int error) {
  return Status(Code::kUnavailable, fmt::format("{}: {}", path, std::strerror(error)));
}

Status Write(const std::string& path, int flags, std::string_view text) {
  // A FIFO that nobody reads must not hold the program up.
  const int fd = open(path.c_str(), flags | O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return Failed(path, errno);
  struct stat status = {};
  int error = fstat(fd, &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) {
    close(fd);
    return InvalidArgument(path + ": not a regular file");
  }
  while (error == 0 && !text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (close(fd) != 0 && error == 0) error = errno;
  return error == 0 ? Status() : Failed(path, error);
}

}  // namespace

Status AppendPrivate(const std::string& path, std::string_view text) {
  return Write(path, O_APPEND, text);
}

Status CreatePrivate(const std::string& path, std::string_view text) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) == 0) {
    return InvalidArgument(path + " is there already: give another name");
  }
  return Write(path, O_EXCL, text);
}

Status ReplacePrivate(const std::string& path, std::string_view text) {
  const std::string beside = fmt::format("{}.{}", path, getpid());
  const Status written = Write(beside, O_EXCL, text);
  if (written.ok() && std::rename(beside.c_str(), path.c_str()) == 0) return {};
  const int error = errno;
  unlink(beside.c_str());
  return written.ok() ? Failed(path, error) : written;
}

}  // namespace baltoro
