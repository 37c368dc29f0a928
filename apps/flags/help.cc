#include "flags/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "flags/availability.h"
#include "flags/value.h"

namespace baltoro {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string Spellings(const FlagSpec& spec) {
  std::string text = fmt::format("--{}", spec.name);
  if (spec.kind == ValueKind::kBool) text += fmt::format(", --no-{}", spec.name);
  for (std::string_view alias : SplitText(spec.aliases, ' ')) text += fmt::format(", {}", alias);
  return text;
}

std::string NotYet(const FlagSpec& spec) {
  if (spec.initial == "true") {
    return fmt::format("Always on; --no-{} is not available yet: {}.", spec.name, spec.reason);
  }
  const std::string instead = spec.instead.empty() ? "" : "; " + std::string(spec.instead);
  if (const std::string taken = TakenValues(spec); !taken.empty()) {
    return fmt::format("Taken: {}; not available yet: {}{}.", taken, spec.reason, instead);
  }
  return fmt::format("Not available yet: {}{}.", spec.reason, instead);
}

// What the flag does today, in a few words; empty where it simply works.
std::string Today(const FlagSpec& spec) {
  if (spec.idle != nullptr) {
    std::string text = fmt::format("No effect {}: {}.", spec.idle->where, spec.idle_reason);
    if (spec.state == FlagState::kNotYet)
      text += " Elsewhere not available yet: " + std::string(spec.reason) + ".";
    return text;
  }
  switch (spec.state) {
    case FlagState::kWorks:
      if (spec.available.empty()) {
        return spec.reason.empty() ? "" : fmt::format("Works for {}.", spec.reason);
      }
      return fmt::format("Works for {}; not available yet: {}.", TakenValues(spec), spec.reason);
    case FlagState::kNoEffectHere:
      return fmt::format("No effect here: {}.", spec.reason);
    case FlagState::kRemovedUpstream:
      return fmt::format("Ignored, removed from vLLM: {}.", spec.reason);
    case FlagState::kMoved:
      return fmt::format("Taken as --{}, which it is in vLLM now.", spec.part_of);
    case FlagState::kNotYet:
      return NotYet(spec);
    case FlagState::kRefused:
      return fmt::format("Refused: {}.", spec.reason);
  }
  return "";
}

std::string Entry(const FlagSpec& spec) {
  std::string text = "  " + Spellings(spec);
  if (const std::string shape = ValueShape(spec); !shape.empty()) text += " " + shape;
  text += fmt::format("\n      {}", spec.help);
  if (!spec.initial.empty()) text += fmt::format(" (default: {})", spec.initial);
  text += "\n";
  if (const std::string today = Today(spec); !today.empty()) text += "      " + today + "\n";
  return text;
}

std::string GroupText(const FlagGroup& group) {
  std::string text = fmt::format("{}: {}\n", group.name, group.help);
  for (const FlagSpec& spec : group.flags) text += Entry(spec);
  return text + "\n";
}

std::string Usage(const FlagTable& table) {
  return fmt::format("usage: {} {}\n", table.command(), table.usage());
}

std::string GroupList(const FlagTable& table) {
  std::string text;
  for (const FlagGroup& group : table.groups()) {
    text += fmt::format("  {:<20} {}\n", group.name, group.help);
  }
  return text;
}

constexpr size_t kShortTableMax = 20;  // such a table is shown whole

Ending Overview(const FlagTable& table) {
  size_t rows = 0;
  for (const FlagGroup& group : table.groups()) rows += group.flags.size();
  Ending ending{.out = Usage(table) + "\n"};
  if (rows <= kShortTableMax) {
    for (const FlagGroup& group : table.groups()) ending.out += GroupText(group);
    return ending;
  }
  for (const FlagGroup& group : table.groups()) {
    if (group.first) ending.out += GroupText(group);
  }
  ending.out += fmt::format(
      "{} flags in these groups:\n{}\n"
      "  --help=all           every flag\n"
      "  --help=GROUP         the flags of a group, as --help=CacheConfig\n"
      "  --help=PART          the flags with PART in their names, as --help=max-\n",
      rows, GroupList(table));
  return ending;
}

Ending Topic(const FlagTable& table, std::string_view topic) {
  Ending ending{.out = Usage(table) + "\n"};
  const std::string wanted = Lower(topic);
  if (wanted == "listgroup") {
    ending.out += GroupList(table);
    return ending;
  }
  for (const FlagGroup& group : table.groups()) {
    if (wanted == "all" || Lower(group.name) == wanted) ending.out += GroupText(group);
    if (Lower(group.name) == wanted) return ending;
  }
  if (wanted == "all") return ending;
  std::string part = wanted;
  std::replace(part.begin(), part.end(), '_', '-');
  bool found = false;
  for (const FlagGroup& group : table.groups()) {
    for (const FlagSpec& spec : group.flags) {
      if (part.empty() || Spellings(spec).find(part) == std::string::npos) continue;
      ending.out += Entry(spec);
      found = true;
    }
  }
  if (found) return ending;
  return Ending{.exit_code = 1,
                .err = fmt::format("No group or parameter matching '{}' found. "
                                   "--help=listgroup lists the groups.\n",
                                   topic)};
}

std::string MarkdownCell(std::string_view text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell += '\\';
    cell += c;
  }
  return cell;
}

std::string InCode(std::string_view text) {
  return text.empty() ? "" : fmt::format("`{}`", MarkdownCell(text));
}

}  // namespace

std::optional<Ending> FindHelp(const FlagTable& table, std::span<const std::string> args) {
  for (const std::string& arg : args) {
    if (arg == "--") break;
    if (arg == "-h" || arg == "--help") return Overview(table);
    constexpr std::string_view kTopic = "--help=";
    if (arg.starts_with(kTopic)) return Topic(table, std::string_view(arg).substr(kTopic.size()));
  }
  return std::nullopt;
}

std::string MarkdownTables(const FlagTable& table) {
  std::string text;
  for (const FlagGroup& group : table.groups()) {
    text += fmt::format("### {}\n\n{}\n\n", group.name, group.help);
    text += "| flag | value | default | what it does | today |\n|---|---|---|---|---|\n";
    for (const FlagSpec& spec : group.flags) {
      const std::string today = Today(spec);
      text += fmt::format("| {} | {} | {} | {} | {} |\n", InCode(Spellings(spec)),
                          InCode(ValueShape(spec)), InCode(spec.initial), MarkdownCell(spec.help),
                          today.empty() ? "works" : MarkdownCell(today));
    }
    text += "\n";
  }
  return text;
}

Ending UsageError(const FlagTable& table, const std::string& message) {
  if (message.starts_with("Error: ")) return Ending{.exit_code = 2, .err = message + "\n"};
  return Ending{.exit_code = 2,
                .err = Usage(table) + fmt::format("{}: error: {}\n", table.command(), message)};
}

std::string SentencesOf(const FlagTable& table, const Ending& ending) {
  const std::string usage = Usage(table), who = std::string(table.command()) + ": ";
  std::string_view text = ending.err;
  const auto skip = [](std::string_view& from, std::string_view what) {
    if (from.starts_with(what)) from.remove_prefix(what.size());
  };
  skip(text, usage);
  std::vector<std::string_view> lines = SplitText(text, '\n');
  std::erase(lines, "");
  for (std::string_view& line : lines) {
    skip(line, who);
    skip(line, "error: ");
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace baltoro
