#pragma once

// What a process gives up that decodes the pictures of strangers.

#include <cstdint>

#include "base/status.h"

namespace baltoro {

// From here on this process, which has one thread, can read and write what it has open, take and
// give back memory up to `memory_max` bytes of addresses, and end: no file, socket, process or
// executable memory more. Not to be undone. Everything else fails as if it were not permitted
// (EPERM), whoever asks.
//
// An error says what the kernel did not allow; the rest is given up nevertheless.
Status EnterPictureSandbox(uint64_t memory_max);

}  // namespace baltoro
