#pragma once

// The lines that are typed in a conversation, made to messages and commands. Pure.

#include <string>
#include <string_view>

#include "base/status.h"

namespace baltoro {

// A message is one line, or several: a line that ends in a backslash goes on with the next one, and
// what stands between two """ is taken as it is.
class TypedMessage {
 public:
  static constexpr size_t kBytesMax = 4 << 20;

  // kInvalidArgument: the message is too long, and gone.
  Status Add(std::string_view line);
  bool begun() const { return begun_; }
  bool complete() const { return begun_ && !in_block_ && !continued_; }
  // A block is no command, whatever it begins with.
  bool block() const { return block_; }
  // The message, and begins the next one.
  std::string Take();

 private:
  std::string text_;
  bool begun_ = false, continued_ = false;
  bool block_ = false, in_block_ = false;
};

enum class ChatVerb { kHelp, kSystem, kImage, kClear, kThinking, kSave, kQuit };

struct ChatCommand {
  ChatVerb verb;
  std::string argument;
};

// Of a line that begins with a slash. The error says what the command takes.
Result<ChatCommand> ParseChatCommand(std::string_view line);

// What /help prints.
extern const char* const kChatHelp;

}  // namespace baltoro
