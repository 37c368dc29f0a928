#pragma once

// What the servers are asked.

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

struct VerifyPrompt {
  std::string id;
  Json body;  // of a chat completion, as a client sent it
};

// About thirty small ones: chats, turns, thinking, tools, schemas, a long context, Unicode, stop
// strings.
std::vector<VerifyPrompt> BuiltInPrompts();

// A body on each line, or a line of OpenAI's batch format; plain or compressed with gzip. Errors
// name the file, its line and what is wrong.
Result<std::vector<VerifyPrompt>> ReadPrompts(const std::string& path);

// `text` of such a file; `path` is for errors.
Result<std::vector<VerifyPrompt>> ParsePrompts(std::string_view text, const std::string& path);

// Those whose names one of `patterns` fits, as a shell's patterns do; all where there are none.
// kInvalidArgument where a pattern fits none.
Result<std::vector<VerifyPrompt>> ChoosePrompts(std::vector<VerifyPrompt> prompts,
                                                const std::vector<std::string>& patterns);

// How a body is sent: greedy, one choice, with a bound on its answer. `model` goes in place of the
// one that is named.
struct SentAs {
  std::string model;
  int max_tokens = 512;
  bool logprobs = false, token_ids = false, streamed = false;
};
Json BodyToSend(const Json& body, const SentAs& as);

// The fields of a body that say what its prompt is, for /tokenize.
Json BodyToTokenize(const Json& body, const std::string& model);

}  // namespace baltoro
