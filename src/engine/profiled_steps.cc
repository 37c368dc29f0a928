#include "engine/profiled_steps.h"

#include <algorithm>

#include "schedule/step_costs.h"

namespace baltoro {
namespace {

constexpr const char* kRequest = "request";
constexpr const char* kQueue = "queue";
constexpr const char* kPrefill = "prefill";
constexpr const char* kDecode = "decode";

uint64_t Number(RequestId id) {
  return static_cast<uint64_t>(id);
}

}  // namespace

void ProfiledSteps::BeginTurn() {
  if (ProfileNumber() == recording_) return;
  recording_ = ProfileNumber();
  phases_.clear();
  steps_.clear();
}

void ProfiledSteps::OnArrival(const Request& request) {
  if (!on()) return;
  BeginProfileLife(kRequest, Number(request.id),
                   {{{"prompt_tokens", static_cast<int64_t>(request.prompt.size())},
                     {"max_tokens", request.stop.max_tokens}}});
  phases_[request.id] = kQueue;
  BeginProfileLife(kQueue, Number(request.id));
}

void ProfiledSteps::Enter(RequestId id, const char* phase) {
  const auto found = phases_.find(id);
  if (found == phases_.end() || found->second == phase) return;
  EndProfileLife(found->second, Number(id));
  BeginProfileLife(phase, Number(id));
  found->second = phase;
}

void ProfiledSteps::OnStarted(RequestId id) {
  if (on()) Enter(id, kPrefill);
}

void ProfiledSteps::OnEvents(const std::vector<TokenEvent>& events) {
  if (!on()) return;
  for (const TokenEvent& event : events) {
    if (!event.tokens.empty()) Enter(event.request, kDecode);
    const auto found = phases_.find(event.request);
    if (found == phases_.end() || event.finish == FinishReason::kNone) continue;
    EndProfileLife(found->second, Number(event.request));
    EndProfileLife(kRequest, Number(event.request), {{{"cached_tokens", event.cached_tokens}}});
    phases_.erase(found);
  }
}

void ProfiledSteps::OnPlan(const StepPlan& plan) {
  if (!on()) return;
  const StepWork work = WorkOf(plan);
  steps_.push_back({.number = plan.step,
                    .begin_ns = ProfileNow(),
                    .args = {{{"step", static_cast<int64_t>(plan.step)},
                              {"sequences", static_cast<int64_t>(plan.sequences.size())},
                              {"prefill_tokens", static_cast<int64_t>(work.prompt_tokens)},
                              {"decode_tokens", static_cast<int64_t>(work.decode_tokens)}}},
                    .decodes_alone = work.prompt_tokens == 0});
}

void ProfiledSteps::OnResult(uint64_t step) {
  if (!on()) return;
  const int64_t now = ProfileNow();
  while (!steps_.empty() && steps_.front().number <= step) {
    const Step& first = steps_.front();
    if (first.number == step) {
      AddProfileSpan("steps", first.decodes_alone ? "decode step" : "prefill step",
                     std::max(first.begin_ns, finished_ns_), now, first.args);
    }
    steps_.pop_front();
  }
  finished_ns_ = now;
}

}  // namespace baltoro
