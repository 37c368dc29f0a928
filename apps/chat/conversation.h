#pragma once

// What was said so far, as the chat API takes it. One thread.

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "flags/client_options.h"

namespace baltoro {

class Conversation {
 public:
  Conversation(const ChatOptions& options, std::string model);

  // `pictures` are data: URLs, which go before the text, so that another question about the same
  // pictures begins as this one does. kInvalidArgument where `text` is no UTF-8.
  Status Ask(const std::string& text, const std::vector<std::string>& pictures);
  void Answer(const std::string& content, const std::string& reasoning);
  // The newest question was not answered, and is as if it had not been asked.
  void DropQuestion();

  void Clear();
  Status SetSystem(const std::string& text);  // empty: none
  void set_thinking(bool thinking) { thinking_ = thinking; }
  bool begun() const { return messages_.size() > 0; }
  bool has_system() const { return !system_.empty(); }

  // The body of the request whose answer is due.
  Json Request() const;
  // A file of model and messages, with the pictures in them; there must be none of this name.
  Status Save(const std::string& path) const;

 private:
  Json Messages() const;

  const ChatOptions& options_;
  const std::string model_;
  std::string system_;
  bool thinking_;
  Json messages_ = Json::array();  // without the system prompt
};

}  // namespace baltoro
