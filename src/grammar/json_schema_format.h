#pragma once

// The values of `format` that are languages of strings.

#include <optional>
#include <string>
#include <string_view>

#include "grammar/grammar_builder.h"
#include "grammar/json_text.h"

namespace baltoro {

// A regular expression for texts of the format, to be matched as a whole; nothing for a format that
// is not known. Where a format allows more than anyone writes, less is matched. It does not bound
// how long a host's name or a mailbox is in all.
std::optional<std::string> FormatPattern(std::string_view format);

// The texts that are written for a format whose texts have a length in all: those of the pattern
// that are not too long (hosts: 63 characters, mailboxes 64, schemes 16), without quotes. Nothing
// where the pattern says it all.
std::optional<GrammarBuilder::Expr> AddFormat(JsonText& text, std::string_view format);

// Formats that say how a value is meant and not how it is written: "int32", "password".
bool IsFormatHint(std::string_view format);

}  // namespace baltoro
