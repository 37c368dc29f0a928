#include "base/input_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/file.h"

namespace baltoro {
namespace {

// What is at `name` below the folder `fd`, without opening it: a device is not touched. The kernel
// keeps to the folder, so nothing can be exchanged between a check and the use.
int Find(int fd, const std::string& name, uint64_t bound) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = bound | RESOLVE_NO_MAGICLINKS;
  // The kernel gives up where something is renamed meanwhile: it cannot tell then.
  constexpr int kAttempts = 200;
  long found = -1;
  for (int i = 0; i < kAttempts; ++i) {
    found = syscall(SYS_openat2, fd, name.c_str(), &how, sizeof how);
    if (found >= 0 || (errno != EAGAIN && errno != EINTR)) break;
  }
  return static_cast<int>(found);
}

std::string_view WhyNot(int error) {
  switch (error) {
    case EXDEV:
    case ELOOP:
      return "the file is a link that leads out of the folder that is read";
    case EACCES:
    case EPERM:
      return "the file may not be read by this server";
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
      return "the file is not there";
    default:
      return "the file cannot be opened";
  }
}

std::string WithoutSlash(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path;
}

Status CheckKind(int fd) {
  struct stat info {};
  struct statfs system {};
  if (fstat(fd, &info) != 0 || fstatfs(fd, &system) != 0) {
    return InvalidArgument("the file cannot be opened");
  }
  const bool made_up = system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC ||
                       system.f_type == DEBUGFS_MAGIC || system.f_type == TRACEFS_MAGIC;
  if (!S_ISREG(info.st_mode) || made_up) return InvalidArgument("the file is no regular file");
  if (info.st_size == 0) return InvalidArgument("the file is empty");
  return {};
}

}  // namespace

Result<InputFolder> InputFolder::Open(const std::string& path, std::string_view flag) {
  const auto error = [&](Code code, std::string_view why) {
    return Status(code, fmt::format("{} {}: {}", flag, path, why));
  };
  std::error_code failed;
  const std::string real = std::filesystem::canonical(path, failed).string();
  if (failed) return error(Code::kInvalidArgument, failed.message());
  const std::string given = std::filesystem::absolute(path, failed).lexically_normal().string();
  if (failed) return error(Code::kInvalidArgument, failed.message());
  const int fd = open(real.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return error(Code::kInvalidArgument, std::strerror(errno));
  InputFolder folder(fd, WithoutSlash(given), WithoutSlash(real));
  const int probe = Find(fd, ".", RESOLVE_BENEATH);
  if (probe < 0) {
    return error(Code::kUnavailable,
                 "the kernel of this machine cannot keep to a folder (openat2, Linux 5.6 or a "
                 "container that permits it); leave it out");
  }
  close(probe);
  return folder;
}

InputFolder::~InputFolder() {
  if (fd_ >= 0) close(fd_);
}

std::optional<std::string> InputFolder::Below(std::string_view path) const {
  for (const std::string& folder : {given_, real_}) {
    if (path.size() > folder.size() + 1 && path.starts_with(folder) && path[folder.size()] == '/') {
      return std::string(path.substr(folder.size() + 1));
    }
  }
  return std::nullopt;
}

Result<std::string> InputFolder::Read(const std::string& name, uint64_t bytes_max) const {
  // Below "/" an absolute link leads nowhere else.
  const int found = Find(fd_, name, real_.empty() ? RESOLVE_IN_ROOT : RESOLVE_BENEATH);
  if (found < 0) return InvalidArgument(std::string(WhyNot(errno)));
  const Status kind = CheckKind(found);
  const std::string self = fmt::format("/proc/self/fd/{}", found);
  Result<InputFile> file = kind.ok() ? InputFile::Open(self, bytes_max) : Result<InputFile>(kind);
  close(found);
  if (!kind.ok()) return kind;
  if (!file.ok()) {
    return InvalidArgument(file.status().code() == Code::kInvalidArgument
                               ? fmt::format("the file has more than {} bytes", bytes_max)
                               : "the file may not be read by this server");
  }
  Result<std::string> bytes = ReadWhole(file.value(), bytes_max);
  if (bytes.ok() || bytes.status().code() == Code::kResourceExhausted) return bytes;
  return InvalidArgument(bytes.status().code() == Code::kInvalidArgument
                             ? fmt::format("the file has more than {} bytes", bytes_max)
                             : "the file cannot be read");
}

}  // namespace baltoro
