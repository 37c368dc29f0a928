#pragma once

// Texts of others (a server, a hub, a model) on their way to a terminal, which obeys control
// characters: C0, DEL and C1 (U+0080 to U+009F) never get there. The results are valid UTF-8. Pure.

#include <string>
#include <string_view>

namespace baltoro {

// C0, DEL and C1.
bool IsControl(char32_t code);
// Marks that change the order in which the characters around them are shown (U+202E among them): in
// a name or a message they make one text look like another.
bool IsBidiControl(char32_t code);

// One line of at most `bytes_max` bytes and " ...": control and bidi characters become spaces.
std::string ForTerminal(std::string_view text, size_t bytes_max = 300);

// A text of any length whose line breaks and tabs stay; other control characters are left out.
std::string WithoutControls(std::string_view text);

}  // namespace baltoro
