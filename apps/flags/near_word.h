#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace baltoro {

// The one of `words` that `word` is most likely a slip of: few letters changed, or one the
// beginning of the other. Empty if none is near, and for a word longer than any of ours.
std::string NearWord(std::string_view word, const std::vector<std::string_view>& words);

}  // namespace baltoro
