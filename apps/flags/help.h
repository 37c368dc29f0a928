#pragma once

// The texts made from a table: --help in its forms, and the table of docs/flags.md.

#include <optional>
#include <span>
#include <string>

#include "flags/ending.h"
#include "flags/flag_table.h"

namespace baltoro {

// The ending for --help, -h, --help=all, --help=listgroup, --help=GROUP or --help=PART-OF-A-FLAG,
// where `args` hold one; else nothing.
std::optional<Ending> FindHelp(const FlagTable& table, std::span<const std::string> args);

// Groups as headings of level 3, rows as Markdown tables.
std::string MarkdownTables(const FlagTable& table);

// "usage: ..." and the error, exit code 2. A message that starts with "Error: " stands alone, as
// upstream prints it.
Ending UsageError(const FlagTable& table, const std::string& message);

// What an ending says on standard error, without the usage, and without who says it.
std::string SentencesOf(const FlagTable& table, const Ending& ending);

}  // namespace baltoro
