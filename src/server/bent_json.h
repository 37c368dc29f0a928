#pragma once

// Bodies that are almost right: what clients with a bug, or an intent, send.

#include <random>
#include <vector>

#include "base/json.h"

namespace baltoro::test {

// One value somewhere inside becomes another, or goes.
inline void Bend(Json& value, std::mt19937& random) {
  const bool deeper = value.is_structured() && !value.empty() && random() % 5 != 0;
  if (deeper) {
    auto inner = value.begin();
    std::advance(inner, random() % value.size());
    if (random() % 8 == 0) {
      value.erase(inner);
    } else {
      Bend(*inner, random);
    }
    return;
  }
  static const std::vector<Json> kOthers = {nullptr,
                                            true,
                                            -1,
                                            1e300,
                                            "",
                                            "text",
                                            "tool_use",
                                            "tool_result",
                                            "function_call",
                                            "reasoning",
                                            "required",
                                            "function",
                                            Json::array(),
                                            Json::object(),
                                            Json::array({nullptr, 1, "x"}),
                                            Json{{"type", "text"}},
                                            Json{{"type", 5}, {"text", {}}}};
  value = kOthers[random() % kOthers.size()];
}

}  // namespace baltoro::test
