// What the simulation holds a door with its replicas to.

#include <algorithm>
#include <utility>

#include "route/testing/replicas_simulation.h"

namespace baltoro::test {

namespace {

constexpr Milliseconds kElsewhere = 1000;  // after which nothing is with a replica that died
constexpr int kPlacementsMax = 4;          // of a request: it moves three times
constexpr int kTokensAfterAbortMax = 6;    // of steps that were on their way

}  // namespace

void ReplicasSimulation::CheckRefusal(const Request& request,
                                      const Status& status,
                                      uint64_t disturbed) {
  const bool full = status.code() == Code::kResourceExhausted;
  if (!full && status.code() != Code::kUnavailable) {
    return world_.Violate("a request is refused: " + status.message());
  }
  ++(full ? report_.full : report_.none_serves);
  if (disturbed != disturbed_) return;
  for (int32_t i = 0; i < replicas_; ++i) {
    if (request.replica >= 0 && request.replica != i) continue;
    if (!Serves(i)) continue;
    if (!full) world_.Violate("a request is refused though a replica serves");
    if (HasRoom(i, request)) world_.Violate("a request is refused though a replica has room");
  }
}

void ReplicasSimulation::OnAsked(int32_t replica, const Request& request) {
  Trace(static_cast<uint64_t>(request.id) * 8 + static_cast<uint64_t>(replica));
  Client& client = clients_.at(static_cast<uint64_t>(request.id));
  const SimulatedEngine& engine = *engines_[shares_ ? 0 : static_cast<size_t>(replica)];
  // Whoever begins to serve within a tick and dies within it, too, is no case of this.
  const bool silent = !served_[static_cast<size_t>(replica)] && !Serves(replica);
  if (silent && disturbed_ == 0) world_.Violate("a replica is asked that does not serve");
  if (client.ended) world_.Violate("a replica is given a request that has ended");
  if (client.received > 0) world_.Violate("a request moves that has been answered");
  if (client.aborted_at >= 0 && client.aborted_at < world_.now) {
    world_.Violate("a request moves whose client has gone");
  }
  for (const SimulatedEngine* other : engines_) {
    if (other->has(request.id)) world_.Violate("a request is with two replicas");
  }
  client.replica = replica;
  client.birth = engine.births();
}

void ReplicasSimulation::OnGiven(int32_t replica, const Request& request, const Status& status) {
  if (!status.ok()) return;
  Client& client = clients_.at(static_cast<uint64_t>(request.id));
  blocks_given_[static_cast<size_t>(replica)] += request.prompt.size() / kBlockTokens;
  if (client.placements++ > 0) ++report_.moves;
  if (client.placements > kPlacementsMax) world_.Violate("a request moves for ever");
  const bool poison = poison_ && static_cast<uint64_t>(request.id) % 16 == 0;
  if (poison) engines_[shares_ ? 0 : static_cast<size_t>(replica)]->Die();
}

void ReplicasSimulation::OnEvents(std::vector<TokenEvent> events) {
  for (const TokenEvent& event : events) {
    Trace(static_cast<uint64_t>(event.request) * 8 + static_cast<uint64_t>(event.replica));
    Trace(static_cast<uint64_t>(event.finish));
    for (const TokenId token : event.tokens) Trace(static_cast<uint64_t>(token));
    const auto found = clients_.find(static_cast<uint64_t>(event.request));
    if (found == clients_.end()) return world_.Violate("an event of an unknown request");
    CheckEvent(found->second, event);
  }
  world_.beside();
}

void ReplicasSimulation::CheckEvent(Client& client, const TokenEvent& event) {
  if (client.ended) return world_.Violate("an event after the final one");
  const bool last = event.finish != FinishReason::kNone;
  if (event.started && !last) {
    if (std::exchange(client.started, true)) world_.Violate("a request leaves the queue twice");
  }
  const SimulatedEngine* engine =
      gone_ ? nullptr : engines_[shares_ ? 0 : static_cast<size_t>(event.replica)];
  if (!event.tokens.empty() && engine != nullptr) {
    if (event.replica != client.replica) world_.Violate("an answer of another replica");
    if (!engine->ready() || engine->births() != client.birth) {
      world_.Violate("an answer of a dead replica");
    }
  }
  for (const TokenId token : event.tokens) {
    if (token != OracleToken(client.chain, client.received, 0, {})) {
      return world_.Violate("a token is not the oracle's");
    }
    client.chain = ChainNext(client.chain, token);
    ++client.received;
    ++report_.tokens;
    if (client.aborted_at >= 0 && ++client.received_after_abort > kTokensAfterAbortMax) {
      world_.Violate("a request goes on whose client has gone");
    }
  }
  if (!last) return;
  client.ended = true;
  std::erase(open_, static_cast<uint64_t>(event.request));
  switch (event.finish) {
    case FinishReason::kLength:
      if (client.received != client.request.stop.max_tokens) world_.Violate("an answer is short");
      break;
    case FinishReason::kAbort:
      if (client.aborted_at < 0) world_.Violate("an abort that nobody asked for");
      break;
    case FinishReason::kLost:
    case FinishReason::kError:
      ++report_.lost;
      CheckLost(client, event);
      break;
    default:
      world_.Violate("a request ends without a reason");
  }
}

// Whether it had to be: no other replica could take it.
void ReplicasSimulation::CheckLost(const Client& client, const TokenEvent& event) {
  const bool ends_with_it = client.received > 0 || client.aborted_at >= 0 ||
                            client.request.replica >= 0 || client.placements >= kPlacementsMax;
  if (ends_with_it || gone_ || disturbed_ > 0) return;
  for (int32_t i = 0; i < replicas_; ++i) {
    if (Serves(i) && HasRoom(i, client.request)) {
      world_.Violate("a request is lost that another replica could take: " + event.error);
    }
  }
}

void ReplicasSimulation::CheckCounts() {
  const std::vector<ReplicaLoad> loads = group_->loads();
  std::vector<bool> unanswered(static_cast<size_t>(replicas_));
  for (const uint64_t id : open_) {
    const Client& client = clients_.at(id);
    if (client.replica >= 0 && client.received == 0) {
      unanswered[static_cast<size_t>(client.replica)] = true;
    }
  }
  if (group_->open_requests() != open_.size()) world_.Violate("open requests are counted wrongly");
  for (int32_t i = 0; i < replicas_; ++i) {
    const auto at = static_cast<size_t>(i);
    const SimulatedEngine& engine = *engines_[shares_ ? 0 : at];
    const int32_t open = engine.open(shares_ ? i : 0);
    if (loads[at].open != open) world_.Violate("the requests of a replica are counted wrongly");
    if (loads[at].waiting_tokens < 0 || (!unanswered[at] && loads[at].waiting_tokens != 0)) {
      world_.Violate("the tokens that wait for a replica are counted wrongly");
    }
    if (group_->known_blocks(i) > blocks_given_[at]) {
      world_.Violate("a replica is taken to know what it has not seen");
    }
    if (engine.dead_since() >= 0 && world_.now - engine.dead_since() > kElsewhere && open > 0) {
      world_.Violate("requests wait for a dead replica");
    }
  }
}

}  // namespace baltoro::test
