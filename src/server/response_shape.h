#pragma once

// How an endpoint prints a generation. A shape knows JSON and nothing of engines, sockets or
// threads.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "request/request.h"
#include "server/api_error.h"
#include "text/event_parser.h"
#include "text/tokenizer.h"

namespace baltoro {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;  // of completion_tokens
};

// How one choice ended, in the API's words.
struct ChoiceEnd {
  std::string finish_reason;  // stop, length, tool_calls, abort
  std::optional<std::string> stop_string;
  std::optional<TokenId> stop_token;
};

// One choice as far as it has come. Streaming shapes read only the new part.
struct ChoiceState {
  int index = 0;
  // The choices of one prompt share both. The first is null unless options ask for the prompt, the
  // second unless its log-probabilities were asked for.
  std::shared_ptr<const std::vector<TokenId>> prompt;
  std::shared_ptr<const std::vector<TokenLogprobs>> prompt_logprobs;
  std::vector<TokenId> tokens;  // whole answers only, when token ids are shown
  std::vector<TokenLogprobs> logprobs;
  std::vector<OutputEvent> events;  // whole answers only
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of completion_tokens
  ChoiceEnd end;
};

// What one step added to one choice.
struct ChoiceDelta {
  const std::vector<OutputEvent>& events;
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;
};

class ResponseShape {
 public:
  virtual ~ResponseShape() = default;
  // Appends complete server-sent events. `usage` is this choice's so far; null unless
  // GenerationOptions::continuous_usage.
  virtual void Begin(const ChoiceState& choice, const Usage* usage, std::string& out) = 0;
  virtual void Delta(const ChoiceState& choice,
                     const ChoiceDelta& delta,
                     const Usage* usage,
                     std::string& out) = 0;
  virtual void End(const ChoiceState& choice, const Usage* usage, std::string& out) = 0;
  // After the last choice: what closes the stream. `include_usage` as in GenerationOptions.
  virtual void CloseStream(const Usage& usage, bool include_usage, std::string& out) = 0;
  // Closes a stream that cannot go on; nothing comes after it. By default OpenAI's form.
  virtual void FailStream(const ApiError& error, std::string& out);
  // The whole answer as one JSON object.
  virtual std::string Whole(const std::vector<ChoiceState>& choices, const Usage& usage) = 0;
};

// Shared pieces of JSON.
void AppendUsage(std::string& out, const Usage& usage);
void AppendStopReason(std::string& out, const ChoiceEnd& end);
void AppendTokenIds(std::string& out, const std::vector<TokenId>& ids);
// ,"finish_reason":..,"stop_reason":..,"token_ids":.. of a whole choice; without ids: null.
void AppendChoiceEnd(std::string& out, const ChoiceState& choice, bool with_token_ids);
// A log-probability as a finite JSON number; -inf becomes -9999.0, as upstream does.
void AppendLogprob(std::string& out, float logprob);
// The characters of one token, or its name if it is an added one.
std::string TokenText(const Tokenizer& tokenizer, TokenId id);
// How a list of log-probabilities names a token: its text, or with `as_id` (and where there is no
// vocabulary) "token_id:ID".
std::string TokenName(const Tokenizer& tokenizer, TokenId id, bool as_id);
// [null, {"ID": {"logprob", "rank", "decoded_token"}, ...}, ...]
void AppendPromptLogprobs(std::string& out,
                          const Tokenizer& tokenizer,
                          const std::vector<TokenLogprobs>& rows);

}  // namespace baltoro
