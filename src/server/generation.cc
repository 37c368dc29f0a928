#include "server/generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/engine_metrics.h"
#include "server/generation_fields.h"

namespace baltoro {
namespace {

std::string FinishName(const TokenEvent& event, bool called) {
  switch (event.finish) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
    case FinishReason::kLost:
      return "error";
    case FinishReason::kNone:
    case FinishReason::kStop:
      break;
  }
  return called ? "tool_calls" : "stop";
}

Rejection RejectionOf(const Status& status) {
  switch (status.code()) {
    case Code::kResourceExhausted:
      return Rejection::kQueueFull;
    case Code::kUnavailable:
      return Rejection::kNotReady;
    case Code::kInvalidArgument:
      return Rejection::kInvalid;
    case Code::kOk:
    case Code::kNotFound:
    case Code::kInternal:
      break;
  }
  return Rejection::kEngine;
}

}  // namespace

Generation::Generation(const GenerationContext& context,
                       Reply reply,
                       ActiveTicket ticket,
                       std::unique_ptr<ResponseShape> shape,
                       GenerationOptions options)
    : context_(context),
      reply_(std::move(reply)),
      ticket_(std::move(ticket)),
      shape_(std::move(shape)),
      options_(std::move(options)),
      arrival_(context.clock->Now()) {}

void Generation::Start(const std::vector<Request>& prompts) {
  choices_.reserve(prompts.size() * static_cast<size_t>(options_.n));
  for (const Request& prompt : prompts) {
    const auto kept = options_.keep_prompt
                          ? std::make_shared<const std::vector<TokenId>>(prompt.prompt)
                          : nullptr;
    for (int32_t i = 0; i < options_.n; ++i) {
      Choice& choice = choices_.emplace_back(
          ChoiceText(*context_.tokenizer, options_.parser, options_.stops, prompt.stop.min_tokens));
      choice.state.index = static_cast<int>(choices_.size()) - 1;
      choice.state.prompt = kept;
      choice.prompt_tokens = static_cast<int64_t>(prompt.prompt.size());
      choice.max_tokens = prompt.stop.max_tokens;
    }
  }
  try {
    for (size_t i = 0; i < choices_.size(); ++i) {
      const auto n = static_cast<size_t>(options_.n);
      if (!Submit(prompts[i / n], choices_[i], static_cast<int>(i % n))) return;
    }
    reply_.OnClientGone([weak = weak_from_this()] {
      if (const auto generation = weak.lock()) generation->Cancel();
    });
  } catch (...) {
    // Want of memory. Whoever stays registered waits for events that may never come, and with it
    // the client.
    Cancel();
    for (const Choice& choice : choices_) context_.dispatcher->Forget(choice.id);
    throw;
  }
}

bool Generation::Submit(const Request& prompt, Choice& choice, int index) {
  choice.id = context_.dispatcher->NewId(reply_.io_thread());
  Request request = ForChoice(prompt, index);
  request.id = choice.id;
  context_.dispatcher->Register(choice.id, shared_from_this(), choice.state.index);
  const Status status = context_.engine->Submit(std::move(request));
  choice.submitted = status.ok();
  if (choice.submitted) return true;
  context_.dispatcher->Forget(choice.id);
  context_.metrics->CountRejected(RejectionOf(status));
  Fail(FromStatus(status));
  return false;
}

void Generation::OnEvent(TokenEvent event, int index) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (over_ || choice.done) return;
  choice.replica = event.replica;
  choice.cached_tokens = std::max<int64_t>(choice.cached_tokens, event.cached_tokens);
  const bool lost = event.finish == FinishReason::kLost;
  if (lost || event.finish == FinishReason::kError) {
    choice.done = true;
    ObserveEnd(choice, "error");
    const Status why(lost ? Code::kUnavailable : event.error_code, event.error);
    if (!streaming_) context_.metrics->CountRejected(RejectionOf(why));
    return Fail(FromStatus(why));
  }
  if (!event.prompt_logprobs.empty()) {
    SharePromptLogprobs(choice, std::move(event.prompt_logprobs));
  }
  // An event with nothing in it says that the request has left the queue.
  if (choice.scheduled == 0 && event.tokens.empty() && event.finish == FinishReason::kNone) {
    choice.scheduled = context_.clock->Now();
  }
  if (!event.tokens.empty()) TakeTokens(choice, event);
  if (choice.done) return;
  if (event.finish != FinishReason::kNone) EndChoice(choice, event);
}

void Generation::SharePromptLogprobs(const Choice& choice, std::vector<TokenLogprobs> rows) {
  const auto shared = std::make_shared<const std::vector<TokenLogprobs>>(std::move(rows));
  const auto n = static_cast<size_t>(options_.n);
  const size_t first = static_cast<size_t>(choice.state.index) / n * n;
  for (size_t i = first; i < first + n; ++i) choices_[i].state.prompt_logprobs = shared;
}

void Generation::TakeTokens(Choice& choice, TokenEvent& event) {
  const bool first = choice.engine_tokens == 0;
  ObserveTokens(choice);
  choice.engine_tokens += static_cast<int64_t>(event.tokens.size());
  if (options_.stream && !choice.began) Begin(choice);
  if (options_.echo_only) return;

  // A token that ends the sequence is counted, but its text is shown only if asked for.
  const bool hide_last = event.finish == FinishReason::kStop && !options_.show_stop_token;
  const size_t shown = event.tokens.size() - (hide_last ? 1 : 0);
  size_t taken = choice.text.Push(std::span(event.tokens).first(shown), choice.pending);
  const bool stopped = choice.text.stop_string() != nullptr;
  if (!stopped) taken = event.tokens.size();
  choice.state.completion_tokens += static_cast<int64_t>(taken);
  choice.state.reasoning_tokens = choice.text.reasoning_tokens();
  choice.pending_tokens += static_cast<int>(taken);

  if (options_.keep_tokens) {
    auto& ids = options_.stream ? choice.pending_ids : choice.state.tokens;
    ids.insert(ids.end(), event.tokens.begin(),
               event.tokens.begin() + static_cast<std::ptrdiff_t>(taken));
  }
  if (!event.logprobs.empty()) {
    auto& rows = options_.stream ? choice.pending_logprobs : choice.state.logprobs;
    const auto count = static_cast<std::ptrdiff_t>(std::min(taken, event.logprobs.size()));
    std::move(event.logprobs.begin(), event.logprobs.begin() + count, std::back_inserter(rows));
  }
  if (stopped) {
    if (event.finish == FinishReason::kNone) context_.engine->Abort(choice.id);
    event.finish = FinishReason::kStop;
    EndChoice(choice, event);
  } else if (options_.stream && (first || choice.pending_tokens >= context_.stream_interval)) {
    FlushDelta(choice);
  }
}

void Generation::ObserveTokens(Choice& choice) {
  const Seconds now = context_.clock->Now();
  if (choice.engine_tokens == 0) {
    choice.first_token = now;
    context_.metrics->engine(choice.replica)
        .ObserveFirstToken(now - arrival_, choice.prompt_tokens, choice.cached_tokens);
  } else {
    context_.metrics->engine(choice.replica).ObserveInterToken(now - choice.last_token);
  }
  choice.last_token = now;
}

void Generation::Begin(Choice& choice) {
  choice.began = true;
  shape_->Begin(choice.state, ContinuousUsage(choice), out_);
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
  if (const std::string* stop = choice.text.stop_string(); stop != nullptr) {
    choice.state.end.stop_string = *stop;
  } else {
    choice.state.end.stop_token = event.stop_token;
  }
  const bool called = choice.text.saw_tool_call() && !options_.calls_end_as_stop;
  choice.state.end.finish_reason = options_.echo_only ? "length" : FinishName(event, called);
  if (options_.stream) {
    if (!choice.began) Begin(choice);
    FlushDelta(choice);
    shape_->End(choice.state, ContinuousUsage(choice), out_);
  } else {
    choice.state.events = std::move(choice.pending);
  }
  const std::string& reason = choice.state.end.finish_reason;
  ObserveEnd(choice, reason == "tool_calls" ? "stop" : reason);
  FinishIfAllDone();
}

void Generation::ObserveEnd(const Choice& choice, std::string_view reason) const {
  const Seconds now = context_.clock->Now();
  FinishedChoice seen;
  seen.reason = reason;
  seen.prompt_tokens = choice.prompt_tokens;
  seen.cached_tokens = choice.cached_tokens;
  seen.output_tokens = choice.state.completion_tokens;
  seen.max_tokens = choice.max_tokens;
  seen.answered = choice.engine_tokens > 0;
  if (choice.scheduled > 0) seen.queue_seconds = choice.scheduled - arrival_;
  const Seconds begin = choice.scheduled > 0 ? choice.scheduled : arrival_;
  seen.prefill_seconds = choice.first_token - begin;
  seen.decode_seconds = choice.last_token - choice.first_token;
  seen.inference_seconds = choice.last_token - begin;
  seen.end_to_end_seconds = now - arrival_;
  context_.metrics->engine(choice.replica).ObserveFinish(seen);
}

void Generation::FinishIfAllDone() {
  const auto done = [](const Choice& choice) { return choice.done; };
  if (over_ || !std::all_of(choices_.begin(), choices_.end(), done)) return;
  Over();
  const Usage usage = TotalUsage();
  if (options_.stream) {
    return shape_->CloseStream(usage, options_.include_usage, out_);
  }
  std::vector<ChoiceState> states;
  for (Choice& choice : choices_) states.push_back(std::move(choice.state));
  reply_.SendJson(shape_->Whole(states, usage));
}

void Generation::OnStepEnd() {
  if (out_.empty()) return;
  if (!streaming_) {
    streaming_ = true;
    reply_.StartStream();
  }
  const bool written = reply_.Write(out_);
  out_.clear();
  if (!written) {
    Cancel();
  } else if (over_) {
    reply_.End();
  }
}

void Generation::OnServerStop() {
  if (!over_) Fail(ShuttingDownError());
}

void Generation::Fail(const ApiError& error) {
  if (options_.span != nullptr) {
    options_.span->http_status = streaming_ ? 200 : error.status;
    options_.span->server_failed = error.status >= 500;
    options_.span->error_type = error.type;
    options_.span->error_message = error.message;
  }
  Cancel();
  if (!streaming_) {
    out_.clear();
    return reply_.Refuse(error);
  }
  reply_.NoteStreamError(error);
  shape_->FailStream(error, out_);
  if (reply_.Write(out_)) reply_.End();
  out_.clear();
}

// The client is gone, or the answer is an error: what still runs is stopped, its later events are
// ignored.
void Generation::Cancel() {
  if (over_) return;
  for (Choice& choice : choices_) {
    if (choice.done) continue;
    choice.done = true;
    if (!choice.submitted) continue;
    context_.engine->Abort(choice.id);
    ObserveEnd(choice, "abort");
  }
  Over();
}

void Generation::Over() {
  over_ = true;
  ticket_ = {};
  options_.picture_bytes = {};
  if (options_.span != nullptr) EndSpan();
  const auto n = static_cast<size_t>(options_.n);
  for (size_t i = 0; i < choices_.size(); i += n) {
    int64_t longest = 0;
    for (size_t j = i; j < i + n; ++j) {
      longest = std::max(longest, choices_[j].state.completion_tokens);
    }
    if (choices_[i].submitted) {
      context_.metrics->engine(choices_[i].replica).ObservePrompt(options_.n, longest);
    }
  }
}

void Generation::EndSpan() {
  RequestSpan& span = *options_.span;
  const bool failed = !span.error_type.empty();
  const auto earlier = [](Seconds& of_all, Seconds one) {
    if (one > 0 && (of_all == 0 || one < of_all)) of_all = one;
  };
  for (const Choice& choice : choices_) {
    earlier(span.scheduled, choice.scheduled);
    earlier(span.first_token, choice.first_token);
    span.last_token = std::max(span.last_token, choice.last_token);
    const std::string& reason = choice.state.end.finish_reason;
    span.finish_reasons.push_back(!reason.empty() ? reason : failed ? "error" : "abort");
  }
  const Usage usage = TotalUsage();
  span.prompt_tokens = usage.prompt_tokens;
  span.completion_tokens = usage.completion_tokens;
  span.submitted = arrival_;
  span.end = context_.clock->Now();
  context_.spans->Add(std::move(span));
  options_.span = nullptr;
}

Usage Generation::TotalUsage() const {
  Usage usage;
  for (size_t i = 0; i < choices_.size(); ++i) {
    usage.completion_tokens += choices_[i].state.completion_tokens;
    usage.reasoning_tokens += choices_[i].state.reasoning_tokens;
    if (i % static_cast<size_t>(options_.n) != 0) continue;  // a prompt counts once
    usage.prompt_tokens += choices_[i].prompt_tokens;
    usage.cached_tokens += choices_[i].cached_tokens;
  }
  return usage;
}

const Usage* Generation::ContinuousUsage(const Choice& choice) {
  if (!options_.continuous_usage) return nullptr;
  usage_ = {.prompt_tokens = choice.prompt_tokens,
            .completion_tokens = choice.state.completion_tokens,
            .cached_tokens = choice.cached_tokens,
            .reasoning_tokens = choice.state.reasoning_tokens};
  return &usage_;
}

}  // namespace baltoro
