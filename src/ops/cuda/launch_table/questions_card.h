#pragma once

// What choices know of a card, as questions and answers: which depends on how its multiprocessors
// are grouped, and so may differ between two cards of one name.

#include <string>
#include <vector>

#include "ops/cuda/choose/card.h"
#include "ops/cuda/launch_table/table.h"

namespace baltoro::cuda::launch_table {

inline void TellCard(const Card& card, Table& table) {
  for (size_t groups = 0; groups < 3; ++groups) {
    std::vector<std::string> lines;
    for (size_t split = 0; split < 3; ++split) {
      std::string line = "clusters of " + std::to_string(2 << split) + ", rows of x 32, 64, 128: ";
      for (size_t tile = 0; tile < (groups == 2 ? 2 : 3); ++tile) {
        line.append(" ").append(std::to_string(card.clusters.bf16_rows128[groups][split][tile]));
      }
      lines.push_back(line);
    }
    table.Add("card, tens_rows of " + std::to_string(groups + 1) + " groups", lines);
  }
  for (size_t strip = 0; strip < 3; ++strip) {
    std::vector<std::string> lines;
    for (size_t part = 0; part < 8; ++part) {
      std::string line = "clusters of " + std::to_string(part + 1) + ", rows of x 8, 16 .. 64: ";
      for (const int32_t clusters : card.clusters.fp8_rows256[strip][part]) {
        line.append(" ").append(std::to_string(clusters));
      }
      lines.push_back(line);
    }
    table.Add("card, fp8_middle of strips of " + std::to_string(32 * (strip + 1)), lines);
  }
}

}  // namespace baltoro::cuda::launch_table
