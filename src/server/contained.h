#pragma once

// The last line of defence of the process: what a library throws while one request is handled
// (out of memory, a JSON value of another type than expected) ends that request and is logged.
// Of ours nothing throws but for want of memory, so anything else here is a bug to mend.

#include <exception>
#include <string_view>

#include "base/log.h"

namespace baltoro {

// False when `work` threw. What it owned is destroyed, so that a client without an answer gets one
// from the connection.
template <typename Work>
bool Contained(std::string_view what, Work&& work) {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    BT_LOG_LIMITED(Error, "{} was given up: {}", what, error.what());
  } catch (...) {
    BT_LOG_LIMITED(Error, "{} was given up: an unknown exception", what);
  }
  return false;
}

}  // namespace baltoro
