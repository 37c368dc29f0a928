#pragma once

// How long the turns of a loop are on this machine: one long turn may be a stall, two in a row are
// the way of it. What was so some minutes of work ago is forgotten, or one slow minute after a
// start would hide every stall that comes.

#include <algorithm>

#include "base/clock.h"

namespace baltoro {

class TurnHistory {
 public:
  // At least so much work is remembered, and at most twice as much.
  static constexpr Seconds kRemembered = 300;

  // A turn that did something.
  void Add(Seconds turn) {
    if (work_ >= kRemembered) {
      longest_before_ = longest_;
      longest_ = work_ = 0;
    }
    longest_ = std::max(longest_, std::min(turn, last_));
    last_ = turn;
    work_ += turn;
  }

  // The most that each of two turns in a row took.
  Seconds longest() const { return std::max(longest_, longest_before_); }

 private:
  Seconds last_ = 0;
  Seconds work_ = 0;  // since what longest_ is of
  Seconds longest_ = 0, longest_before_ = 0;
};

}  // namespace baltoro
