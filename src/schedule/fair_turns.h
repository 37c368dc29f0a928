#pragma once

// Gives each owner of requests an equal share of an engine, in tokens, while several of them have
// requests: start-time fair queueing (Goyal, Vin, Cheng, 1996), served by the ends. Each request
// gets a span of virtual time when it arrives, as long as its tokens; who ends first is served
// first. So an owner's own requests keep the order of their arrival, a newcomer waits for no flood
// of others, and whoever was idle has saved nothing up. No clock: virtual time is the begin of the
// latest span that anybody was admitted with.
//
// One thread.

#include <cstdint>
#include <unordered_map>

namespace baltoro {

class FairTurns {
 public:
  struct Span {
    int64_t begin = 0, end = 0;  // in tokens
  };

  // For a request that arrives. `expected`: tokens that it is charged for now.
  Span Take(uint64_t owner, int64_t expected);
  // It is admitted, perhaps once more.
  void Begin(const Span& span);
  // It has left, with so many tokens of prompt and output served; once for each Take(). The
  // difference is settled with its owner's next request.
  void Leave(uint64_t owner, int64_t expected, int64_t served);

 private:
  struct Owner {
    int64_t end = 0;   // of the last span
    int64_t owes = 0;  // served beyond what was expected; negative: the other way round
    int64_t requests = 0;
  };
  std::unordered_map<uint64_t, Owner> owners_;  // as many as have ever asked
  int64_t now_ = 0;
};

}  // namespace baltoro
