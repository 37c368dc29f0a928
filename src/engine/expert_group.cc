#include "engine/expert_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace baltoro {

EventSink ExpertGroup::SinkOf(int32_t replica, const EventSink& sink) {
  return [replica, sink](std::vector<TokenEvent> events) {
    for (TokenEvent& event : events) event.replica = replica;
    sink(std::move(events));
  };
}

Status ExpertGroup::Submit(Request request) {
  if (request.replica < 0 || request.replica >= std::ssize(replicas_)) {
    return InvalidArgument(
        fmt::format("data parallel rank {} is none of this group's: they are 0 "
                    "to {}",
                    request.replica, replicas_.size() - 1));
  }
  return replicas_[static_cast<size_t>(request.replica)]->Submit(std::move(request));
}

void ExpertGroup::Abort(RequestId id) {
  for (const auto& replica : replicas_) replica->Abort(id);  // those without it ignore that
}

EngineStats ExpertGroup::stats() const {
  EngineStats sum;
  for (const auto& replica : replicas_) sum += replica->stats();
  return sum;
}

EngineHealth ExpertGroup::health() const {
  EngineHealth worst;
  size_t ended = 0;
  for (const auto& replica : replicas_) {
    const EngineHealth health = replica->health();
    if (health.trouble == EngineTrouble::kEnded) {
      ++ended;
      worst.lost_node = std::max(worst.lost_node, health.lost_node);
    } else if (worst.ok()) {
      worst.trouble = health.trouble;
    }
  }
  if (ended == replicas_.size()) worst.trouble = EngineTrouble::kEnded;
  return worst;
}

Status ExpertGroup::end() const {
  for (const auto& replica : replicas_) BT_RETURN_IF_ERROR(replica->end());
  return {};
}

void ExpertGroup::Profile(const ProfileAsk& ask, const ProfileDone& done) {
  replicas_.front()->Profile(ask, done);
}

}  // namespace baltoro
