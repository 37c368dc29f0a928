#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace baltoro {

Result<std::string> ReadFile(const std::string& path, size_t bytes_max) {
  const auto fail = [&](int error) {
    return Status(error == ENOENT ? Code::kNotFound : Code::kUnavailable,
                  path + ": " + std::strerror(error));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(errno);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return fail(error);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return InvalidArgument(path + ": not a regular file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size > bytes_max) {
    close(fd);
    return InvalidArgument(path + ": " + std::to_string(size) + " bytes, the limit is " +
                           std::to_string(bytes_max));
  }
  std::string out(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t got = read(fd, out.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      close(fd);
      return fail(error);
    }
    if (got == 0) break;  // the file shrank meanwhile
    done += static_cast<size_t>(got);
  }
  close(fd);
  out.resize(done);
  return out;
}

bool FileExists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

}  // namespace baltoro
