#pragma once

// One generating exchange: from submitted requests to the last byte of the answer. Lives on one I/O
// thread.

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "net/http_server.h"
#include "server/choice_text.h"
#include "server/dispatcher.h"
#include "server/metrics.h"
#include "server/response_shape.h"

namespace baltoro {

// What outlives every exchange.
struct GenerationContext {
  Engine* engine = nullptr;
  Dispatcher* dispatcher = nullptr;
  Metrics* metrics = nullptr;
  const Clock* clock = nullptr;
  int stream_interval = 1;  // tokens gathered for one streamed chunk
};

struct GenerationOptions {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool keep_tokens = false;                 // the whole answer shows token ids
  HttpHeaders headers;                      // sent with the answer
  std::vector<StopMatcher> stops;           // one per choice
  std::vector<EventParserOptions> parsers;  // one per choice
};

class Generation final : public EventReceiver, public std::enable_shared_from_this<Generation> {
 public:
  Generation(const GenerationContext& context,
             Responder responder,
             std::unique_ptr<ResponseShape> shape,
             const Tokenizer& tokenizer,
             GenerationOptions options);

  // Registers and submits one request per choice. On refusal nothing runs on and the client has its
  // answer.
  void Start(std::vector<Request> requests);

  void OnEvent(TokenEvent event, int choice) override;
  void OnStepEnd() override;

 private:
  struct Choice {
    explicit Choice(ChoiceText its_text) : text(std::move(its_text)) {}

    ChoiceState state;
    ChoiceText text;
    RequestId id{};
    bool done = false;  // its part of the answer is complete
    bool began = false;
    int pending_tokens = 0;  // of the chunk being gathered
    std::vector<OutputEvent> pending;
    std::vector<TokenId> pending_ids;
    std::vector<TokenLogprobs> pending_logprobs;
    int64_t cached_tokens = 0;
    Seconds first_token = 0, last_token = 0;
  };

  void TakeTokens(Choice& choice, TokenEvent& event);
  void EndChoice(Choice& choice, const TokenEvent& event);
  void Observe(Choice& choice, bool first, size_t tokens);
  void FlushDelta(Choice& choice);
  void Fail(const ApiError& error);
  void Cancel();
  void FinishIfAllDone();
  Usage TotalUsage() const;
  const Usage* ContinuousUsage(const Choice& choice);

  GenerationContext context_;
  Responder responder_;
  std::unique_ptr<ResponseShape> shape_;
  GenerationOptions options_;
  std::vector<Choice> choices_;
  std::string out_;  // bytes for the next write
  bool streaming_ = false;
  bool over_ = false;  // nothing more will be sent
  Seconds arrival_ = 0;
  Usage usage_;  // scratch of ContinuousUsage
};

}  // namespace baltoro
