// The processes that PictureProcess's tests start: picture_test_worker KIND.
//
//   work   what the product runs
//   narrow the same with hardly more memory than it has at its start
//   die    takes a job and ends
//   hang   takes a job and does nothing
//   lie    answers a job with a grid that its patches do not have
//   none   ends before it is ready
//   probe  gives everything up and tries what it must not: exit code 0 where nothing works

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/file.h"
#include "media/picture_sandbox.h"
#include "media/picture_wire.h"
#include "media/picture_worker.h"

namespace {

constexpr int kFd = 3;

// The number of what worked, or 0.
int Probe() {
  if (!baltoro::EnterPictureSandbox(uint64_t{1} << 30).ok()) return 1;
  const auto denied = [](long result) { return result == -1 && errno == EPERM; };
  if (!denied(syscall(SYS_openat, AT_FDCWD, "/", 0, 0))) return 2;
  if (!denied(socket(AF_INET, SOCK_STREAM, 0))) return 3;
  if (!denied(syscall(SYS_clone, 0, 0, 0, 0, 0))) return 4;
  if (!denied(execl("/bin/true", "true", nullptr))) return 5;
  if (!denied(syscall(SYS_ptrace, 0, 0, 0, 0))) return 6;
  if (!denied(kill(getppid(), 0))) return 7;
  void* code = mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (code != MAP_FAILED) return 8;
  void* data = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return 9;
  if (!denied(mprotect(data, 4096, PROT_READ | PROT_EXEC))) return 10;
  if (!denied(dup(kFd))) return 11;
  const pid_t parent = 1;  // the first process: any that is not this one
  if (!denied(syscall(SYS_tgkill, parent, parent, 0))) return 12;
  return 0;
}

// Of addresses that this process has taken.
uint64_t AddressBytes() {
  const auto pages = baltoro::ReadFile("/proc/self/statm");
  if (!pages.ok()) std::exit(1);
  return std::strtoull(pages.value().c_str(), nullptr, 10) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void Hello() {
  const baltoro::PictureAnswer ready;
  if (write(kFd, &ready, sizeof(ready)) != sizeof(ready)) std::exit(1);
}

void TakeJob() {
  baltoro::PictureJob job;
  if (read(kFd, &job, sizeof(job)) != sizeof(job)) std::exit(0);
  std::string file(job.bytes, '\0');
  for (size_t at = 0; at < file.size();) {
    const ssize_t got = read(kFd, file.data() + at, file.size() - at);
    if (got <= 0) std::exit(0);
    at += static_cast<size_t>(got);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc > 1 ? argv[1] : "";
  if (kind == "work") baltoro::RunPictureWorker(kFd);
  if (kind == "narrow") baltoro::RunPictureWorker(kFd, AddressBytes() + (uint64_t{4} << 20));
  if (kind == "probe") _exit(Probe());
  if (kind == "none") return 7;
  Hello();
  TakeJob();
  if (kind == "die") std::abort();
  if (kind == "lie") {
    const baltoro::PictureAnswer answer{.grid_height = 2, .grid_width = 2, .patch_bytes = 1 << 30};
    if (write(kFd, &answer, sizeof(answer)) != sizeof(answer)) return 1;
  }
  TakeJob();
  return 0;
}
