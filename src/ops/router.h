#pragma once

// How a router chooses experts.

#include <cstdint>

namespace baltoro {

enum class RouterScore : uint8_t { kSigmoid, kSoftmax };

// model-family §2.7. Ties go to the lower expert index.
struct RouterParams {
  RouterScore score = RouterScore::kSigmoid;
  int32_t experts = 0, top_k = 0;
  int32_t groups = 1, groups_used = 1;
  bool group_by_top2 =
      true;  // group score: sum of the two best biased scores (noaux_tc); else the maximum
  bool normalise = true;  // divide by the sum of the chosen (+ 1e-20)
  float scaling = 1.0f;
};

}  // namespace baltoro
