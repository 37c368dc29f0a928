#include "media/picture_sandbox.h"

#include <errno.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <vector>

namespace baltoro {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "the numbers of system calls are those of one kind of processor: name it here"
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // these reserve terabytes of addresses
#else
constexpr bool kSanitized = false;
#endif

// What the memory, the locks and the end of a process of one thread take.
constexpr int kAllowed[] = {
    SYS_read,          SYS_write,       SYS_close,           SYS_munmap,       SYS_mremap,
    SYS_madvise,       SYS_brk,         SYS_futex,           SYS_exit,         SYS_exit_group,
    SYS_getpid,        SYS_gettid,      SYS_rt_sigreturn,    SYS_rt_sigaction, SYS_rt_sigprocmask,
    SYS_clock_gettime, SYS_sigaltstack, SYS_restart_syscall, SYS_sched_yield,  SYS_getrandom,
};
// Allowed unless they ask for memory that can be executed.
// Allowed unless they ask for memory that can be executed.
constexpr int kAllowedForData[] = {SYS_mmap, SYS_mprotect};

std::vector<sock_filter> MakeFilter() {
  std::vector<sock_filter> out;
  const auto put = [&](const sock_filter& step) { out.push_back(step); };
  const auto load = [&](size_t offset) {
    put(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  };
  const auto answer = [&](uint32_t what) { put(BPF_STMT(BPF_RET | BPF_K, what)); };

  load(offsetof(seccomp_data, arch));
  put(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
  answer(SECCOMP_RET_KILL_PROCESS);
  load(offsetof(seccomp_data, nr));
  for (const int call : kAllowed) {
    put(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
    answer(SECCOMP_RET_ALLOW);
  }
  for (const int call : kAllowedForData) {
    put(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 4));
    load(offsetof(seccomp_data, args[2]));  // the protection, in its low half
    put(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0));
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_ERRNO | EPERM);
  }
  // abort(): a signal to this process itself, and to no other.
  put(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 4));
  load(offsetof(seccomp_data, args[0]));
  put(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(getpid()), 0, 1));
  answer(SECCOMP_RET_ALLOW);
  answer(SECCOMP_RET_ERRNO | EPERM);
  answer(SECCOMP_RET_ERRNO | EPERM);
  return out;
}

Status Limit(__rlimit_resource what, const char* name, uint64_t most) {
  const rlimit limit = {.rlim_cur = most, .rlim_max = most};
  if (setrlimit(what, &limit) == 0) return {};
  return Status(Code::kUnavailable, fmt::format("{}: {}", name, std::strerror(errno)));
}

}  // namespace

Status EnterPictureSandbox(uint64_t memory_max) {
  Status first;
  const auto note = [&first](Status status) {
    if (first.ok()) first = std::move(status);
  };
  if (!kSanitized) note(Limit(RLIMIT_AS, "limit of memory", memory_max));
  note(Limit(RLIMIT_CORE, "no dump of memory", 0));
  note(Limit(RLIMIT_FSIZE, "no files", 0));
  note(Limit(RLIMIT_NOFILE, "no descriptors", 0));
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);

  std::vector<sock_filter> filter = MakeFilter();
  const sock_fprog program = {.len = static_cast<unsigned short>(filter.size()),
                              .filter = filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    note(Status(Code::kUnavailable, fmt::format("seccomp: {}", std::strerror(errno))));
  }
  return first;
}

}  // namespace baltoro
