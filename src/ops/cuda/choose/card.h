#pragma once

// What choices may know of the card. A plain value: choices are made, and tested, without a card.
// ThisCard (ops/cuda/launch/card.h) gives that of the device in use.

#include <array>
#include <cstdint>

namespace baltoro::cuda {

class Overrides;

// How many clusters of a kernel's blocks run at once. Multiprocessors lie in groups of different
// sizes, which clusters do not leave, so it is measured for each card.
struct ClusterRoom {
  // bf16_rows128, by groups of 64 rows of weights (1 to 3), blocks of a cluster (2, 4, 8) and rows
  // of x of a block (32, 64, 128; the last not of three groups).
  std::array<std::array<std::array<int32_t, 3>, 3>, 3> bf16_rows128 = {};
  // fp8_rows256, by rows of weights of a block (32, 64, 96), blocks of a cluster (1 to 8) and rows
  // of x (8, 16 .. 64).
  std::array<std::array<std::array<int32_t, 8>, 8>, 3> fp8_rows256 = {};

  bool operator==(const ClusterRoom&) const = default;
};

struct Card {
  int32_t multiprocessors = 132;
  // False where others have blocks on it: of a rank that has a share of it, for tests. Kernels
  // whose blocks all wait for each other need the whole card, and are then not chosen.
  bool owned = true;
  ClusterRoom clusters = {};
  // Kernels that are wanted on it, whatever would be chosen (overrides.h); null: none.
  const Overrides* overrides = nullptr;
};

}  // namespace baltoro::cuda
