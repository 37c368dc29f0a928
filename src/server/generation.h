#pragma once

// One generating exchange: from submitted requests to the last byte of the answer. Lives on one I/O
// thread.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/byte_shares.h"
#include "server/choice_text.h"
#include "server/dispatcher.h"
#include "server/engine_slot.h"
#include "server/metrics.h"
#include "server/reply.h"
#include "server/request_span.h"
#include "server/response_shape.h"

namespace baltoro {

// What outlives every exchange.
struct GenerationContext {
  EngineSlot* engine = nullptr;
  Dispatcher* dispatcher = nullptr;
  Metrics* metrics = nullptr;
  const Clock* clock = nullptr;
  const Tokenizer* tokenizer = nullptr;
  SpanSink* spans = nullptr;  // null: options have no span
  int stream_interval = 1;    // tokens gathered for one streamed chunk, but for the first
};

// Counts an exchange as under way, or bytes that it holds, for as long as it lives.
class ActiveTicket {
 public:
  ActiveTicket() = default;
  explicit ActiveTicket(std::atomic<int64_t>& count, int64_t by = 1)
      : count_(&count, Decrement{by}) {
    count += by;
  }

 private:
  struct Decrement {
    int64_t by;
    void operator()(std::atomic<int64_t>* count) const { *count -= by; }
  };
  std::unique_ptr<std::atomic<int64_t>, Decrement> count_;
};

struct GenerationOptions {
  int32_t n = 1;  // choices of each prompt
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool keep_tokens = false;        // the answer shows the ids of tokens
  bool keep_prompt = false;        // and those of the prompt, or its text
  bool show_stop_token = false;    // the text of the token that ended a choice is a part of it
  bool calls_end_as_stop = false;  // the finish reason of an answer with tool calls is "stop"
  bool echo_only = false;  // the one token that the engine makes is not a part of the answer
  EventParserOptions parser;
  StopMatcher stops{{}, false};
  ByteHold picture_bytes;             // of its prompts
  std::unique_ptr<RequestSpan> span;  // begun; its end goes to the context's sink
};

class Generation final : public EventReceiver, public std::enable_shared_from_this<Generation> {
 public:
  Generation(const GenerationContext& context,
             Reply reply,
             ActiveTicket ticket,
             std::unique_ptr<ResponseShape> shape,
             GenerationOptions options);

  // Registers and submits options.n requests for each of `prompts`. On refusal nothing runs on and
  // the client has its answer.
  void Start(const std::vector<Request>& prompts);

  void OnEvent(TokenEvent event, int choice) override;
  void OnStepEnd() override;
  void OnServerStop() override;

 private:
  struct Choice {
    explicit Choice(ChoiceText its_text) : text(std::move(its_text)) {}

    ChoiceState state;
    ChoiceText text;
    RequestId id{};
    int32_t replica = 0;  // that the newest event came from
    bool submitted = false;
    bool done = false;   // its part of the answer is complete
    bool began = false;  // something of it was streamed
    int64_t prompt_tokens = 0, max_tokens = 0, cached_tokens = 0;
    int64_t engine_tokens = 0;  // as the engine counts, of which some may not be shown
    int pending_tokens = 0;     // of the chunk being gathered
    std::vector<OutputEvent> pending;
    std::vector<TokenId> pending_ids;
    std::vector<TokenLogprobs> pending_logprobs;
    Seconds scheduled = 0, first_token = 0, last_token = 0;  // 0: not known
  };

  bool Submit(const Request& prompt, Choice& choice, int index);
  void TakeTokens(Choice& choice, TokenEvent& event);
  void SharePromptLogprobs(const Choice& choice, std::vector<TokenLogprobs> rows);
  void EndChoice(Choice& choice, const TokenEvent& event);
  void ObserveTokens(Choice& choice);
  void ObserveEnd(const Choice& choice, std::string_view reason) const;
  void Begin(Choice& choice);
  void FlushDelta(Choice& choice);
  void Fail(const ApiError& error);
  void Cancel();
  void FinishIfAllDone();
  void Over();
  void EndSpan();
  Usage TotalUsage() const;
  const Usage* ContinuousUsage(const Choice& choice);

  GenerationContext context_;
  Reply reply_;
  ActiveTicket ticket_;
  std::unique_ptr<ResponseShape> shape_;
  GenerationOptions options_;
  std::vector<Choice> choices_;  // those of a prompt side by side
  std::string out_;              // bytes for the next write
  bool streaming_ = false;
  bool over_ = false;  // nothing more will be sent
  Seconds arrival_ = 0;
  Usage usage_;  // scratch of ContinuousUsage
};

}  // namespace baltoro
