#pragma once

// Ranks that are threads of one process. Messages up to kEagerBytes are copied into a slot at the
// receiver, longer ones straight from the sender's buffer to the receiver's. Waiting threads sleep.

#include <cstdint>
#include <memory>

#include "comm/link.h"

namespace baltoro {

class ThreadWorld {
 public:
  explicit ThreadWorld(int32_t ranks);
  ~ThreadWorld();

  // The link of one rank, once for each; it may outlive the world.
  std::unique_ptr<Link> Join(int32_t rank);

  struct State;

 private:
  std::shared_ptr<State> state_;  // shared: the last link to end, or the world, ends it
};

}  // namespace baltoro
