#pragma once

// UTF-8, strictly as RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF.

#include <cstdint>
#include <string>
#include <string_view>

namespace baltoro {

// Length in bytes (1-4) of the valid character at the start of `text`; 0 if there is none.
size_t Utf8ValidLength(std::string_view text);

// Decodes the character at the start of `text` into `code`; returns its length, or 0 and leaves
// `code` alone.
size_t Utf8Decode(std::string_view text, char32_t& code);

// Appends the UTF-8 form of `code`.
void Utf8Append(std::string& out, char32_t code);

// True if `text` ends in the first bytes of a character that more bytes could still complete;
// `length` is the count of those bytes (1-3).
bool Utf8IncompleteTail(std::string_view text, size_t& length);

bool IsValidUtf8(std::string_view text);

// Replaces each maximal invalid piece by U+FFFD, as WHATWG and Python's errors="replace" do.
std::string Utf8Sanitize(std::string_view text);

}  // namespace baltoro
