#pragma once

// Finds stop strings in streamed text. What could still become a stop string is held back, so
// nothing of a stop string is ever shown (unless asked for), for any split of the text.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baltoro {

class StopMatcher {
 public:
  // `include`: the matched string itself is shown too.
  StopMatcher(std::vector<std::string> stops, bool include);

  // Appends to `out` what may be shown now. After a match further text is dropped.
  void Push(std::string_view text, std::string& out);
  // The text ends here, or its kind changes: appends what was held back.
  void Flush(std::string& out);
  // Index into `stops` of the string that ended the text: the one that starts first, the longest of
  // those.
  std::optional<size_t> matched() const { return matched_; }
  const std::string& stop(size_t i) const { return stops_[i]; }

 private:
  std::vector<std::string> stops_;
  bool include_ = false;
  std::string held_;
  std::optional<size_t> matched_;
};

}  // namespace baltoro
