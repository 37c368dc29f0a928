#include "route/replica_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cache/block_id.h"
#include "schedule/block_name.h"
#include "schedule/planted_bug.h"

namespace baltoro {
namespace {

// A request whose replicas die again and again may be why.
constexpr int32_t kMovesMax = 3;

HashKey RandomKey() {
  std::random_device random;
  HashKey key;
  for (uint64_t& word : key) word = uint64_t{random()} << 32 | random();
  return key;
}

// `asked`: the replica that the request names; -1: any.
Status NoneServes(int32_t asked) {
  if (asked < 0) {
    return Status(Code::kUnavailable, "no replica of the model is running; they are started again");
  }
  return Status(Code::kUnavailable,
                fmt::format("data parallel rank {} is not running: ask again when it is back, or "
                            "name none and another one answers",
                            asked));
}

}  // namespace

ReplicaGroup::ReplicaGroup(int32_t count, EventSink sink)
    : sink_(std::move(sink)), names_(RandomKey()), replicas_(static_cast<size_t>(count)) {
  BT_CHECK(count > 0);
}

Result<std::unique_ptr<Engine>> ReplicaGroup::Start(int32_t count,
                                                    const Maker& maker,
                                                    EventSink sink) {
  std::unique_ptr<ReplicaGroup> group(new ReplicaGroup(count, std::move(sink)));
  std::vector<Status> said(static_cast<size_t>(count));
  {
    std::vector<std::jthread> starters;
    for (int32_t i = 0; i < count; ++i) {
      starters.emplace_back(
          [&, i, raw = group.get()] { said[static_cast<size_t>(i)] = raw->Make(i, maker); });
    }
  }
  for (const Status& status : said) BT_RETURN_IF_ERROR(status);
  return std::unique_ptr<Engine>(std::move(group));
}

Result<std::unique_ptr<ReplicaGroup>> ReplicaGroup::StartInTurn(int32_t count,
                                                                const Maker& maker,
                                                                EventSink sink) {
  std::unique_ptr<ReplicaGroup> group(new ReplicaGroup(count, std::move(sink)));
  for (int32_t i = 0; i < count; ++i) BT_RETURN_IF_ERROR(group->Make(i, maker));
  return group;
}

Status ReplicaGroup::Make(int32_t replica, const Maker& maker) {
  Replica& one = replicas_[static_cast<size_t>(replica)];
  BT_ASSIGN_OR_RETURN(one.engine, maker(replica, [this, replica](std::vector<TokenEvent> events) {
                        OnEvents(replica, std::move(events));
                      }));
  one.known = KnownPrefixes(one.engine->info().num_blocks);
  return {};
}

ReplicaGroup::~ReplicaGroup() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (Replica& replica : replicas_) replica.engine.reset();
}

Status ReplicaGroup::Submit(Request request) {
  if (request.replica >= static_cast<int32_t>(replicas_.size())) {
    return InvalidArgument(
        fmt::format("data parallel rank {} is none of this server's: they are 0 to {}",
                    request.replica, replicas_.size() - 1));
  }
  const RequestId id = request.id;
  Open open{.request = nullptr, .names = NamePrompt(names_, request)};
  open.request = std::make_shared<const Request>(std::move(request));
  {
    const std::lock_guard lock(mutex_);
    if (!open_.emplace(id, std::move(open)).second) {
      return Status(Code::kInternal, "the request id is in use");
    }
  }
  Status placed = Place(id);
  if (!placed.ok() && !Planted(PlantedBug::kRefusedStaysOpen)) {
    const std::lock_guard lock(mutex_);
    open_.erase(id);
  }
  return placed;
}

// The replicas to try, the best first. Under mutex_.
std::vector<int32_t> ReplicaGroup::Rank(const Open& open) {
  const auto tokens = static_cast<int64_t>(open.request->prompt.size());
  std::vector<ReplicaLoad> loads;
  loads.reserve(replicas_.size());
  for (const Replica& replica : replicas_) {
    loads.push_back({.waiting_tokens = replica.waiting_tokens,
                     .open = replica.open,
                     .known_tokens = int64_t{replica.known.Known(open.names)} * kBlockTokens});
  }
  return RankReplicas(loads, tokens, last_);
}

// Of a request that no replica has.
Status ReplicaGroup::Place(RequestId id) {
  std::vector<bool> serves;
  for (const Replica& replica : replicas_) serves.push_back(replica.engine->healthy());
  std::vector<int32_t> order;
  int32_t asked = -1;
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < replicas_.size(); ++i) {
      if (!serves[i] && !Planted(PlantedBug::kKnownOutlivesReplica)) replicas_[i].known.Clear();
      if (Planted(PlantedBug::kAsksTheSilent)) serves[i] = true;
    }
    const Open& open = open_.at(id);
    asked = open.request->replica;
    order = asked >= 0 ? std::vector{asked} : Rank(open);
  }
  std::erase_if(order, [&](int32_t replica) { return !serves[static_cast<size_t>(replica)]; });
  Status said = NoneServes(asked);
  for (const int32_t replica : order) {
    const Status placed = PlaceAt(id, replica);
    const bool full = placed.code() == Code::kResourceExhausted;
    if (!full && placed.code() != Code::kUnavailable) return placed;
    if (full && Planted(PlantedBug::kFullEndsTheSearch)) return placed;
    if (full || said.code() == Code::kUnavailable) said = placed;
  }
  return said;
}

Status ReplicaGroup::PlaceAt(RequestId id, int32_t which) {
  Replica& replica = replicas_[static_cast<size_t>(which)];
  std::shared_ptr<const Request> request;
  {
    // Its events may come before Submit returns.
    const std::lock_guard lock(mutex_);
    Open& open = open_.at(id);
    request = open.request;
    open.replica = which;
    open.waiting_tokens = static_cast<int64_t>(request->prompt.size()) -
                          int64_t{replica.known.Known(open.names)} * kBlockTokens;
    replica.waiting_tokens += open.waiting_tokens;
    ++replica.open;
  }
  const Status status = replica.engine->Submit(*request);
  bool abort = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(id);
    // Over already, or with another replica.
    if (found == open_.end() || found->second.replica != which) return {};
    Open& open = found->second;
    if (status.ok()) {
      replica.known.Use(open.names);
      last_ = which;
      abort = open.aborted && !Planted(PlantedBug::kAbortBesideSubmission);
    } else if (!Planted(PlantedBug::kRefusedStillCounts)) {
      LeaveReplica(open);
    }
  }
  if (abort) replica.engine->Abort(id);
  return status;
}

void ReplicaGroup::Abort(RequestId id) {
  int32_t replica = -1;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(id);
    if (found == open_.end()) return;
    found->second.aborted = true;  // for PlaceAt, where the replica does not have it yet
    replica = found->second.replica;
  }
  if (replica >= 0) replicas_[static_cast<size_t>(replica)].engine->Abort(id);
}

// On the replica's own thread.
void ReplicaGroup::OnEvents(int32_t which, std::vector<TokenEvent> events) {
  std::vector<RequestId> homeless;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(events, [&](TokenEvent& event) {
      const auto found = open_.find(event.request);
      if (found == open_.end() || found->second.replica != which) return true;
      Open& open = found->second;
      if (event.finish == FinishReason::kLost) {
        if (!Planted(PlantedBug::kKnownOutlivesReplica)) {
          replicas_[static_cast<size_t>(which)].known.Clear();
        }
        const bool gone = open.aborted && !Planted(PlantedBug::kMovesWhatIsAborted);
        const bool too_often = open.moves >= kMovesMax && !Planted(PlantedBug::kMovesForEver);
        const bool moves = open.request != nullptr && open.request->replica < 0 && !gone &&
                           !too_often && !stopping_;
        if (moves) {
          ++open.moves;
          if (!Planted(PlantedBug::kMovedStillCounts)) LeaveReplica(open);
          homeless.push_back(event.request);
          return true;
        }
      }
      event.replica = which;
      if (!event.tokens.empty() || !event.prompt_logprobs.empty()) Answered(open);
      const bool over = event.finish != FinishReason::kNone;
      const bool told =
          event.started && std::exchange(open.started, true) && !Planted(PlantedBug::kStartedAgain);
      if (over) {
        LeaveReplica(open);
        open_.erase(found);
      }
      return told && !over;
    });
  }
  if (!events.empty()) sink_(std::move(events));
  if (homeless.empty()) return;
  std::vector<TokenEvent> lost;
  for (const RequestId id : homeless) {
    const Status placed = Place(id);
    if (placed.ok() || Planted(PlantedBug::kHomelessIsForgotten)) continue;
    lost.emplace_back().request = id;
    lost.back().Fail(placed);
    lost.back().replica = which;
    const std::lock_guard lock(mutex_);
    open_.erase(id);
  }
  BT_LOG(Warning,
         "Replica {} is gone: of {} requests that it had not begun to answer {} went to others, {} "
         "ended with an error",
         which, homeless.size(), homeless.size() - lost.size(), lost.size());
  if (!lost.empty()) sink_(std::move(lost));
}

// It has a first token, and stays where it is. Under mutex_.
void ReplicaGroup::Answered(Open& open) {
  if (open.request == nullptr) return;
  if (!Planted(PlantedBug::kAnsweredStillWaits)) {
    replicas_[static_cast<size_t>(open.replica)].waiting_tokens -=
        std::exchange(open.waiting_tokens, 0);
  }
  if (Planted(PlantedBug::kMovesWhatIsAnswered)) return;
  open.request = nullptr;
  open.names = {};
}

// Under mutex_.
void ReplicaGroup::LeaveReplica(Open& open) {
  Replica& replica = replicas_[static_cast<size_t>(open.replica)];
  replica.waiting_tokens -= std::exchange(open.waiting_tokens, 0);
  --replica.open;
  open.replica = -1;
}

std::vector<ReplicaLoad> ReplicaGroup::loads() const {
  const std::lock_guard lock(mutex_);
  std::vector<ReplicaLoad> loads;
  for (const Replica& replica : replicas_) {
    loads.push_back({.waiting_tokens = replica.waiting_tokens, .open = replica.open});
  }
  return loads;
}

size_t ReplicaGroup::known_blocks(int32_t replica) const {
  const std::lock_guard lock(mutex_);
  return replicas_[static_cast<size_t>(replica)].known.size();
}

size_t ReplicaGroup::open_requests() const {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

EngineStats ReplicaGroup::stats() const {
  EngineStats sum;
  for (const Replica& replica : replicas_) sum += replica.engine->stats();
  return sum;
}

EngineHealth ReplicaGroup::health() const {
  EngineHealth first = replicas_.front().engine->health();
  for (const Replica& replica : replicas_) {
    if (const EngineHealth health = replica.engine->health(); health.ok()) return health;
  }
  return first;
}

Status ReplicaGroup::end() const {
  for (const Replica& replica : replicas_) {
    if (replica.engine->end().ok()) return {};
  }
  return replicas_.front().engine->end();
}

void ReplicaGroup::Profile(const ProfileAsk& ask, const ProfileDone& done) {
  struct Answers {
    std::mutex mutex;
    size_t missing;
    Status status;
    Json said = Json::array();
  };
  const auto answers = std::make_shared<Answers>();
  answers->missing = replicas_.size();
  for (size_t i = 0; i < replicas_.size(); ++i) answers->said.push_back(nullptr);
  for (size_t i = 0; i < replicas_.size(); ++i) {
    replicas_[i].engine->Profile(
        ask, [answers, done, i, ask](const Status& status, const Json& said) {
          {
            const std::lock_guard lock(answers->mutex);
            if (!status.ok() && answers->status.ok()) answers->status = status;
            answers->said[i] = said;
            if (--answers->missing > 0) return;
          }
          done(answers->status, ask.start ? Json() : Json{{"replicas", answers->said}});
        });
  }
}

void ReplicaGroup::Leave() {
  for (const Replica& replica : replicas_) replica.engine->Leave();
}

std::vector<const Engine*> ReplicaGroup::replicas() const {
  std::vector<const Engine*> out;
  for (const Replica& replica : replicas_) out.push_back(replica.engine.get());
  return out;
}

}  // namespace baltoro
