#pragma once

// A sink that keeps what each request was told, and lets a test wait for it.

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace baltoro::test {

struct Told {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string error;
  Code error_code = Code::kOk;
  int finals = 0, events = 0;
  int starts = 0;
  bool token_before_start = false;
  int32_t cached_tokens = 0;
};

class EventLog {
 public:
  EventSink sink() {
    return [this](std::vector<TokenEvent> events) {
      const std::lock_guard lock(mutex_);
      for (TokenEvent& event : events) {
        Told& told = told_[event.request];
        if (event.started) ++told.starts;
        if (told.starts == 0 && !event.tokens.empty()) told.token_before_start = true;
        told.tokens.insert(told.tokens.end(), event.tokens.begin(), event.tokens.end());
        told.logprobs.insert(told.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
        if (!event.prompt_logprobs.empty()) told.prompt_logprobs = event.prompt_logprobs;
        told.cached_tokens = event.cached_tokens;
        ++told.events;
        if (event.finish == FinishReason::kNone) continue;
        told.finish = event.finish;
        told.error = event.error;
        told.error_code = event.error_code;
        ++told.finals;
      }
      changed_.notify_all();
    };
  }
  // What the request was told by its end, or by the time that patience ends.
  Told WaitForEnd(uint64_t id, double seconds = 20) {
    return WaitUntil(id, seconds, [](const Told& told) { return told.finals > 0; });
  }
  Told WaitForStart(uint64_t id, double seconds = 20) {
    return WaitUntil(id, seconds, [](const Told& told) { return told.starts > 0; });
  }
  Told WaitForTokens(uint64_t id, size_t count, double seconds = 20) {
    return WaitUntil(id, seconds, [&](const Told& told) { return told.tokens.size() >= count; });
  }
  Told Get(uint64_t id) {
    const std::lock_guard lock(mutex_);
    return told_[RequestId{id}];
  }

 private:
  template <typename Condition>
  Told WaitUntil(uint64_t id, double seconds, const Condition& condition) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                      [&] { return condition(told_[RequestId{id}]); });
    return told_[RequestId{id}];
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Told> told_;
};

}  // namespace baltoro::test
