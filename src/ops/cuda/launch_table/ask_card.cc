// What plans ask of the card: how many clusters run at once, which depends on how its
// multiprocessors are grouped and so may differ between two cards of one name. Whoever chooses
// without a card is given these numbers.

#include "ops/cuda/fp8_middle_internal.h"
#include "ops/cuda/launch_table/ask.h"
#include "ops/cuda/tens_rows.h"
#include "ops/cuda/tens_rows_internal.h"

namespace baltoro::cuda::launch_table {
namespace {

// As tens_rows.cc asks: a block that has a multiprocessor almost for itself.
constexpr int kTensRowsShared = (170 << 10) + 1024;

void TellTensRows(Asker& asker) {
  for (int groups = 1; groups <= kTensRowsGroupsMax; ++groups) {
    std::vector<std::string> lines;
    for (const int split : {2, 4, 8}) {
      std::string line = "clusters of " + std::to_string(split) + ", rows of x 32, 64, 128: ";
      for (const int tile : {32, 64, 128}) {
        if (groups == kTensRowsGroupsMax && tile == 128) continue;
        const TensRowsPlan plan{.groups = groups, .tile = tile, .split = split};
        line.append(" ").append(std::to_string(TensRowsClusters(plan, kTensRowsShared)));
      }
      lines.push_back(line);
    }
    asker.Tell("card, tens_rows of " + std::to_string(groups) + " groups", lines);
  }
}

void TellMiddle(Asker& asker) {
  for (const int32_t strip_rows : {32, 64, 96}) {
    std::vector<std::string> lines;
    for (int32_t parts = 1; parts <= kMiddlePartsMax; ++parts) {
      std::string line = "clusters of " + std::to_string(parts) + ", rows of x 8, 16 .. 64: ";
      for (int32_t rows = 8; rows <= kMiddleRowsMax; rows += 8) {
        MiddleParams params = {};
        params.parts = parts;
        params.slice = (rows + parts - 1) / parts;
        const int32_t bytes = MiddleSharedBytes(strip_rows, params);
        line.append(" ").append(std::to_string(MiddleClusters(strip_rows, parts, bytes)));
      }
      lines.push_back(line);
    }
    asker.Tell("card, fp8_middle of strips of " + std::to_string(strip_rows), lines);
  }
}

}  // namespace

void TellCard(Asker& asker) {
  TellTensRows(asker);
  TellMiddle(asker);
}

}  // namespace baltoro::cuda::launch_table
