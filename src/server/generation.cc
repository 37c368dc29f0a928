#include "server/generation.h"

#include <algorithm>

namespace baltoro {
namespace {

std::string FinishName(const TokenEvent& event, const ChoiceText& text) {
  if (text.saw_tool_call() && event.finish == FinishReason::kStop) return "tool_calls";
  switch (event.finish) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
    case FinishReason::kStop:
      break;
  }
  return "stop";
}

}  // namespace

Generation::Generation(const GenerationContext& context,
                       Responder responder,
                       std::unique_ptr<ResponseShape> shape,
                       const Tokenizer& tokenizer,
                       GenerationOptions options)
    : context_(context),
      responder_(std::move(responder)),
      shape_(std::move(shape)),
      options_(std::move(options)),
      arrival_(context.clock->Now()) {
  choices_.reserve(options_.parsers.size());
  for (size_t i = 0; i < options_.parsers.size(); ++i) {
    choices_.emplace_back(ChoiceText(tokenizer, options_.parsers[i], options_.stops[i]));
    choices_.back().state.index = static_cast<int>(i);
  }
}

void Generation::Start(std::vector<Request> requests) {
  BT_CHECK(requests.size() == choices_.size());
  const std::shared_ptr<Generation> self = shared_from_this();
  for (size_t i = 0; i < requests.size(); ++i) {
    Choice& choice = choices_[i];
    choice.id = context_.dispatcher->NewId(responder_.io_thread());
    choice.state.prompt = requests[i].prompt;
    requests[i].id = choice.id;
    const int64_t prompt_tokens = static_cast<int64_t>(requests[i].prompt.size());
    const int32_t max_tokens = requests[i].stop.max_tokens;
    context_.dispatcher->Register(choice.id, self, static_cast<int>(i));
    if (const Status status = context_.engine->Submit(std::move(requests[i])); !status.ok()) {
      for (size_t j = i; j < choices_.size(); ++j) choices_[j].done = true;
      context_.dispatcher->Forget(choice.id);
      context_.metrics->CountRejected(status.code() == Code::kResourceExhausted ? "queue_full"
                                                                                : "engine");
      return Fail(FromStatus(status));
    }
    context_.metrics->ObserveRequest(prompt_tokens, max_tokens,
                                     static_cast<int32_t>(choices_.size()));
  }
  responder_.OnClientGone([weak = weak_from_this()] {
    if (const auto generation = weak.lock()) generation->Cancel();
  });
}

void Generation::OnEvent(TokenEvent event, int index) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (over_ || choice.done) return;
  if (event.finish == FinishReason::kError) {
    choice.done = true;
    context_.metrics->ObserveFinish("error", static_cast<int64_t>(choice.state.prompt.size()),
                                    choice.state.completion_tokens, choice.cached_tokens, {});
    const bool gone = !context_.engine->healthy();
    return Fail(gone ? UnavailableError(event.error) : InternalError(event.error));
  }
  choice.cached_tokens = std::max<int64_t>(choice.cached_tokens, event.cached_tokens);
  if (!event.prompt_logprobs.empty())
    choice.state.prompt_logprobs = std::move(event.prompt_logprobs);
  if (!event.tokens.empty()) TakeTokens(choice, event);
  if (choice.done) return;
  if (event.finish != FinishReason::kNone) EndChoice(choice, event);
}

void Generation::TakeTokens(Choice& choice, TokenEvent& event) {
  const bool first = choice.state.completion_tokens == 0;
  // A token that ends the sequence is counted but never shown.
  const bool ended_by_token = event.finish == FinishReason::kStop;
  const size_t shown = event.tokens.size() - (ended_by_token ? 1 : 0);
  size_t taken = choice.text.Push(std::span(event.tokens).first(shown), choice.pending);
  if (choice.text.stop_string() == nullptr) taken = event.tokens.size();
  choice.state.completion_tokens += static_cast<int64_t>(taken);
  choice.pending_tokens += static_cast<int>(taken);

  const auto end = event.tokens.begin() + static_cast<std::ptrdiff_t>(taken);
  if (options_.keep_tokens) {
    auto& ids = options_.stream ? choice.pending_ids : choice.state.tokens;
    ids.insert(ids.end(), event.tokens.begin(), end);
  }
  if (!event.logprobs.empty()) {
    auto& rows = options_.stream ? choice.pending_logprobs : choice.state.logprobs;
    const size_t count = std::min(taken, event.logprobs.size());
    rows.insert(rows.end(), event.logprobs.begin(),
                event.logprobs.begin() + static_cast<std::ptrdiff_t>(count));
  }
  Observe(choice, first, taken);

  if (options_.stream && !choice.began) {
    choice.began = true;
    shape_->Begin(choice.state, ContinuousUsage(choice), out_);
  }
  if (choice.text.stop_string() != nullptr) {
    choice.state.end.stop_string = *choice.text.stop_string();
    if (event.finish == FinishReason::kNone) context_.engine->Abort(choice.id);
    event.finish = FinishReason::kStop;
    EndChoice(choice, event);
  } else if (options_.stream && choice.pending_tokens >= context_.stream_interval) {
    FlushDelta(choice);
  }
}

void Generation::Observe(Choice& choice, bool first, size_t tokens) {
  const Seconds now = context_.clock->Now();
  if (first) {
    choice.first_token = now;
    context_.metrics->ObserveFirstToken(now - arrival_);
  } else if (tokens > 0) {
    context_.metrics->ObserveInterToken(now - choice.last_token);
  }
  choice.last_token = now;
}

void Generation::FlushDelta(Choice& choice) {
  const ChoiceDelta delta{choice.pending, std::move(choice.pending_ids),
                          std::move(choice.pending_logprobs)};
  if (!choice.pending.empty() || !delta.tokens.empty() || !delta.logprobs.empty()) {
    shape_->Delta(choice.state, delta, ContinuousUsage(choice), out_);
  }
  choice.pending.clear();
  choice.pending_ids.clear();
  choice.pending_logprobs.clear();
  choice.pending_tokens = 0;
}

void Generation::EndChoice(Choice& choice, const TokenEvent& event) {
  choice.done = true;
  choice.text.Finish(choice.pending);
  choice.state.end.finish_reason = FinishName(event, choice.text);
  if (!choice.state.end.stop_string) choice.state.end.stop_token = event.stop_token;
  if (options_.stream) {
    if (!choice.began) shape_->Begin(choice.state, ContinuousUsage(choice), out_);
    choice.began = true;
    FlushDelta(choice);
    shape_->End(choice.state, ContinuousUsage(choice), out_);
  } else {
    choice.state.events = std::move(choice.pending);
  }
  const Seconds now = context_.clock->Now();
  RequestTimes times;
  times.end_to_end = now - arrival_;
  times.inference = times.end_to_end;
  times.decode = choice.last_token - choice.first_token;
  times.prefill = choice.first_token > 0 ? choice.first_token - arrival_ : 0;
  context_.metrics->ObserveFinish(
      choice.state.end.finish_reason == "tool_calls" ? "stop" : choice.state.end.finish_reason,
      static_cast<int64_t>(choice.state.prompt.size()), choice.state.completion_tokens,
      choice.cached_tokens, times);
  FinishIfAllDone();
}

void Generation::FinishIfAllDone() {
  if (over_ ||
      !std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.done; }))
    return;
  over_ = true;
  const Usage usage = TotalUsage();
  if (!options_.stream) {
    std::vector<ChoiceState> states;
    for (Choice& choice : choices_) states.push_back(std::move(choice.state));
    responder_.Send(
        {.status = 200, .headers = options_.headers, .body = shape_->Whole(states, usage)});
    return;
  }
  if (options_.include_usage) shape_->UsageChunk(usage, out_);
  out_ += "data: [DONE]\n\n";
}

void Generation::OnStepEnd() {
  if (out_.empty()) return;
  if (!streaming_) {
    streaming_ = true;
    responder_.StartStream(200, options_.headers);
  }
  if (!responder_.Write(out_)) return Cancel();
  out_.clear();
  if (over_) responder_.End();
}

void Generation::Fail(const ApiError& error) {
  Cancel();
  over_ = true;
  if (!streaming_) {
    HttpResponse response{
        .status = error.status, .headers = options_.headers, .body = ErrorBody(error)};
    if (error.status == 429 || error.status == 503)
      response.headers.emplace_back("retry-after", "1");
    out_.clear();
    return responder_.Send(std::move(response));
  }
  out_ += "data: " + ErrorBody(error) + "\n\ndata: [DONE]\n\n";
  responder_.Write(out_);
  out_.clear();
  responder_.End();
}

// The client is gone, or the answer is an error: what still runs is stopped, its later events are
// ignored.
void Generation::Cancel() {
  over_ = true;
  for (Choice& choice : choices_) {
    if (choice.done) continue;
    choice.done = true;
    context_.engine->Abort(choice.id);
    context_.metrics->ObserveFinish("abort", static_cast<int64_t>(choice.state.prompt.size()),
                                    choice.state.completion_tokens, choice.cached_tokens, {});
  }
}

Usage Generation::TotalUsage() const {
  Usage usage;
  // The choices of one prompt share it; several prompts come one after the other.
  const std::vector<TokenId>* last = nullptr;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.state.completion_tokens;
    if (last != nullptr && *last == choice.state.prompt) continue;
    last = &choice.state.prompt;
    usage.prompt_tokens += static_cast<int64_t>(choice.state.prompt.size());
    usage.cached_tokens += choice.cached_tokens;
  }
  return usage;
}

const Usage* Generation::ContinuousUsage(const Choice& choice) {
  if (!options_.continuous_usage) return nullptr;
  usage_ = {.prompt_tokens = static_cast<int64_t>(choice.state.prompt.size()),
            .completion_tokens = choice.state.completion_tokens,
            .cached_tokens = choice.cached_tokens};
  return &usage_;
}

}  // namespace baltoro
