#pragma once

// What choices may know of the card. A plain value: choices are made, and tested, without a card.

#include <array>
#include <cstdint>

namespace baltoro::cuda {

struct Card {
  int32_t multiprocessors = 132;
  // False where others have blocks on it: another engine, or other ranks. Kernels whose blocks all
  // wait for each other need the whole card, and are then not chosen.
  bool owned = true;
};

}  // namespace baltoro::cuda
