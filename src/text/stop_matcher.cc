#include "text/stop_matcher.h"

#include <algorithm>

namespace baltoro {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include) {}

void StopMatcher::Push(std::string_view text, std::string& out) {
  if (matched_ || text.empty()) return;
  if (stops_.empty()) {
    out.append(text);
    return;
  }
  held_.append(text);

  size_t end = std::string::npos;  // of the match that ends first
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = held_.find(stops_[i]);
    if (at == std::string::npos) continue;
    const size_t this_end = at + stops_[i].size();
    if (this_end < end || (this_end == end && stops_[i].size() > stops_[*matched_].size())) {
      end = this_end;
      matched_ = i;
    }
  }
  if (matched_) {
    out.append(held_, 0, include_ ? end : end - stops_[*matched_].size());
    held_.clear();
    return;
  }

  // Keep the longest tail that is the beginning of some stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) {
        keep = length;
        break;
      }
    }
  }
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
}

void StopMatcher::Flush(std::string& out) {
  if (!matched_) out.append(held_);
  held_.clear();
}

}  // namespace baltoro
