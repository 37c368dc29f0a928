#pragma once

#include <cstdint>

namespace baltoro {

// What a process does that PictureProcess started: takes jobs from `fd`, a socket, until it is
// closed, and never returns. The process has no other thread, and can do nothing else from here on
// (picture_sandbox.h).
[[noreturn]] void RunPictureWorker(int fd, uint64_t memory_max = uint64_t{2} << 30);

}  // namespace baltoro
