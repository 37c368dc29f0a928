#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace baltoro {
namespace {

constexpr size_t kFirstRead = 4096;  // of a file that does not tell its size

Status SystemError(int error) {
  return Status(error == ENOENT ? Code::kNotFound : Code::kUnavailable, std::strerror(error));
}

Status TooLong(uint64_t bytes, uint64_t bytes_max) {
  return InvalidArgument("has " + std::to_string(bytes) + " bytes, the limit is " +
                         std::to_string(bytes_max));
}

const char* KindOf(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return "a directory";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    default:
      return "no file";
  }
}

Status CheckRegular(const struct stat& info) {
  if (S_ISREG(info.st_mode)) return {};
  return InvalidArgument(std::string("is ") + KindOf(info.st_mode) + ", not a regular file");
}

// The descriptor and what is behind it.
Result<int> OpenRegular(const std::string& path, uint64_t bytes_max, struct stat& info) {
  // Before opening, which can do something to a device.
  if (stat(path.c_str(), &info) != 0) {
    const int error = errno;
    if (error != ENOENT || !FileExists(path)) return SystemError(error);
    return Status(Code::kUnavailable, "is a link to a file that is not there");
  }
  BT_RETURN_IF_ERROR(CheckRegular(info));
  // Not blocking: what has this name may be another file by now.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return SystemError(errno);
  const auto check = [&]() -> Status {
    if (fstat(fd, &info) != 0) return SystemError(errno);
    BT_RETURN_IF_ERROR(CheckRegular(info));
    const auto bytes = static_cast<uint64_t>(info.st_size);
    if (bytes > bytes_max) return TooLong(bytes, bytes_max);
    // io_uring gives up where such a descriptor would have to wait for the disk.
    if (fcntl(fd, F_SETFL, 0) != 0) return SystemError(errno);
    return {};
  };
  Status status = check();
  if (status.ok()) return fd;
  close(fd);
  return status;
}

Status Named(std::string_view flag, const std::string& path, const Status& why) {
  const std::string what = flag.empty() ? path : std::string(flag) + " " + path;
  return Status(why.code(), what + ": " + why.message());
}

}  // namespace

Result<InputFile> InputFile::Open(const std::string& path,
                                  uint64_t bytes_max,
                                  std::string_view flag) {
  struct stat info {};
  const Result<int> fd = OpenRegular(path, bytes_max, info);
  if (!fd.ok()) return Named(flag, path, fd.status());
  return InputFile(fd.value(), static_cast<uint64_t>(info.st_size), info.st_mode & 07777);
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

int InputFile::OpenDirect() const {
  // By the descriptor, so that it is this file whatever has its name now.
  const std::string self = "/proc/self/fd/" + std::to_string(fd_);
  return open(self.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
}

Result<std::string> ReadWhole(const InputFile& file, uint64_t bytes_max) {
  std::string out;
  size_t done = 0;
  try {
    // One byte more than it should have: to see its end.
    out.resize(std::max<size_t>(file.bytes() + 1, kFirstRead));
    while (true) {
      const ssize_t got =
          pread(file.fd(), out.data() + done, out.size() - done, static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return SystemError(errno);
      if (got == 0) break;
      done += static_cast<size_t>(got);
      if (done > bytes_max) return TooLong(done, bytes_max);
      if (done == out.size()) out.resize(2 * done);
    }
    out.resize(done);
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted,
                  "not enough memory to read its " + std::to_string(file.bytes()) + " bytes");
  }
  return out;
}

Result<std::string> ReadFile(const std::string& path, uint64_t bytes_max, std::string_view flag) {
  BT_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path, bytes_max, flag));
  Result<std::string> text = ReadWhole(file, bytes_max);
  if (!text.ok()) return Named(flag, path, text.status());
  return text;
}

bool FileExists(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

void HoldStandardFiles() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", O_RDWR);  // takes the lowest free number
  }
}

}  // namespace baltoro
