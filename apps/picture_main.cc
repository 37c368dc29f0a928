#include "picture_main.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/child_process.h"
#include "base/last_words.h"
#include "media/picture_worker.h"

extern char** environ;

namespace baltoro {
namespace {

constexpr int kSocket = 3, kLastWords = 4;  // as StartChild hands them over

// What a picture must not find in here, should it take the process over: keys and tokens, and the
// door's log.
void LeaveNothingBehind() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    explicit_bzero(*entry, std::strlen(*entry));
  }
  *environ = nullptr;
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(standard);
  CloseDescriptorsFrom(kLastWords + 1);
}

}  // namespace

int RunPictureMain() {
  if (fcntl(kSocket, F_GETFD) < 0 || fcntl(kLastWords, F_GETFD) < 0) {
    std::fputs("baltoro pictures is started by baltoro serve, with a socket of its own\n", stderr);
    return 2;
  }
  // The door decides when to leave: its pictures of a drain are still decoded.
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_IGN);
  SetLastWordsPipe(kLastWords);
  LeaveNothingBehind();
  RunPictureWorker(kSocket);
}

}  // namespace baltoro
