#pragma once

#include <string>
#include <string_view>

namespace baltoro {

// Padded base64, strictly: whole groups of four of the standard alphabet, no line breaks, nothing
// in the bits that are cut off. False where `text` is none, or empty; `out` is then of no use.
bool DecodeBase64(std::string_view text, std::string& out);

// The same form of `bytes`, behind what is in `out`.
void AppendBase64(std::string& out, std::string_view bytes);

}  // namespace baltoro
