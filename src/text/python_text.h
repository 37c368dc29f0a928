#pragma once

// Text as Python's str sees it: the vendor's chat template and tool declaration are specified by
// Python programs, so their idea of white space, letter case and printed numbers is the contract.

#include <cstdint>
#include <string>
#include <string_view>

namespace baltoro {

// str.isspace() of one code point.
bool IsPythonSpace(char32_t code);
// Bytes of the white-space character at the start (or end) of `text`; 0 if there is none.
size_t LeadingSpaceLength(std::string_view text);
size_t TrailingSpaceLength(std::string_view text);

// Start of the character that ends `text` (not empty); a byte that belongs to none is its own.
size_t LastCharacterStart(std::string_view text);
// Bytes of the first character of `text` (not empty); 1 where the bytes are not UTF-8.
size_t CharacterLength(std::string_view text);
// len(str): characters, each invalid byte counted as one.
size_t CharacterCount(std::string_view text);

enum class LetterCase { kUpper, kLower, kTitle };
// Appends what one code point becomes. The final-sigma rule needs the neighbours and is not here.
void AppendCased(std::string& out, char32_t code, LetterCase to);
// True if the code point has another case (Python's "cased", near enough for word borders).
bool IsCased(char32_t code);

// repr(float): the shortest digits that read back the same, with Python's choice of exponent.
std::string PythonFloat(double value);
// repr(str), with quotes.
void AppendPythonRepr(std::string& out, std::string_view text);

// json.dumps(str), with quotes.
void AppendPythonJson(std::string& out, std::string_view text, bool ensure_ascii);

}  // namespace baltoro
