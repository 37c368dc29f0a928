// The scanner beside the library's parser: both say of the same texts that they are JSON.

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "base/json_scanner.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // The library ends at a NUL, refuses numbers that a double cannot hold, and has no limit of
  // depth.
  const auto is_apart = [](char c) { return c == '\0' || c == 'e' || c == 'E'; };
  if (size > 300 || std::any_of(text.begin(), text.end(), is_apart)) return 0;
  const auto depth =
      std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; });
  if (depth > baltoro::JsonScanner::kDepthMax) return 0;
  baltoro::JsonScanner json(text);
  const bool accepted = json.Skip() && json.End();
  BT_CHECK(accepted == baltoro::Json::accept(text));
  BT_CHECK(accepted == json.status().ok());
  return 0;
}
