#include "chat/typed_message.h"

#include <fmt/format.h>

#include <utility>

#include "base/trim.h"

namespace baltoro {
namespace {

constexpr std::string_view kMark = "\"\"\"";

enum class Takes { kNothing, kAny, kSome };

struct Row {
  std::string_view name;
  ChatVerb verb;
  Takes takes;
};

constexpr Row kRows[] = {
    {"/help", ChatVerb::kHelp, Takes::kNothing},     {"/system", ChatVerb::kSystem, Takes::kAny},
    {"/image", ChatVerb::kImage, Takes::kAny},       {"/clear", ChatVerb::kClear, Takes::kNothing},
    {"/thinking", ChatVerb::kThinking, Takes::kAny}, {"/save", ChatVerb::kSave, Takes::kSome},
    {"/quit", ChatVerb::kQuit, Takes::kNothing},
};

}  // namespace

const char* const kChatHelp =
    "/help               this list\n"
    "/system TEXT        sets the system prompt from the next question on; without TEXT there is "
    "none\n"
    "/image FILE         sends a picture with the next question, again for another one; without "
    "FILE none\n"
    "/clear              begins a new conversation; the system prompt stays\n"
    "/thinking on|off    lets the model think before it answers, or not\n"
    "/save FILE          writes the conversation as JSON, as the API takes it, pictures and all\n"
    "/quit               leaves, as Ctrl-D does\n"
    "A line that ends in \\ goes on with the next one; text between two \"\"\" may have any "
    "lines.\n"
    "Ctrl-C ends an answer, or forgets what is typed. A space before a slash makes it a "
    "question.\n";

Status TypedMessage::Add(std::string_view line) {
  if (text_.size() + line.size() > kBytesMax) {
    Take();
    return InvalidArgument(
        fmt::format("a message has at most {} MiB; this one is forgotten", kBytesMax >> 20));
  }
  if (!begun_ && Trim(line).starts_with(kMark)) {
    line.remove_prefix(line.find(kMark) + kMark.size());
    block_ = in_block_ = true;
    if (Trim(line).empty()) line = {};
  } else if (begun_ && !text_.empty()) {
    text_ += '\n';
  }
  begun_ = true;
  if (block_) {
    const size_t end = line.rfind(kMark);
    if (end != std::string_view::npos && Trim(line.substr(end + kMark.size())).empty()) {
      in_block_ = false;
      line = line.substr(0, end);
      if (line.empty() && !text_.empty() && text_.back() == '\n') text_.pop_back();
    }
  } else {
    continued_ = line.ends_with('\\');
    if (continued_) line.remove_suffix(1);
  }
  text_ += line;
  return {};
}

std::string TypedMessage::Take() {
  std::string text = std::move(text_);
  *this = {};
  return text;
}

Result<ChatCommand> ParseChatCommand(std::string_view line) {
  const size_t end = line.find_first_of(" \t\n");
  const std::string_view name = line.substr(0, end);
  std::string_view rest = end == std::string_view::npos ? "" : line.substr(end);
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\n"), rest.size()));
  while (!rest.empty() && std::string_view(" \t\n").find(rest.back()) != std::string_view::npos)
    rest.remove_suffix(1);
  for (const Row& row : kRows) {
    if (row.name != name) continue;
    if (row.takes == Takes::kNothing && !rest.empty())
      return InvalidArgument(fmt::format("{} takes nothing after it", name));
    if (row.takes == Takes::kSome && rest.empty())
      return InvalidArgument(fmt::format("{}: the name of a file is missing", name));
    if (row.verb == ChatVerb::kThinking && rest != "on" && rest != "off")
      return InvalidArgument("/thinking on, or /thinking off");
    return ChatCommand{row.verb, std::string(rest)};
  }
  return InvalidArgument(fmt::format(
      "{} is no command: /help lists them; with a space before the slash it is a question", name));
}

}  // namespace baltoro
