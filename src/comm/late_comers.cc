#include "comm/late_comers.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace baltoro {
namespace {

constexpr Seconds kRound = 0.1;  // how soon the end is seen
constexpr Seconds kAnswerLimit = 1;
constexpr Seconds kTell = 10;

}  // namespace

LateComers::LateComers(RankSocket listener,
                       std::string cluster_key,
                       Hello own,
                       std::string member,
                       std::function<void(const std::string&)> tell)
    : acceptor_(std::move(listener), std::move(cluster_key)),
      own_(std::move(own)),
      member_(std::move(member)),
      tell_(std::move(tell)),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void LateComers::Run(const std::stop_token& stop) {
  const MonotonicClock clock;
  Seconds told = clock.Now() - kTell;
  while (!stop.stop_requested()) {
    std::optional<PeerAcceptor::Arrival> arrival = acceptor_.Next(clock.Now() + kRound);
    if (!arrival.has_value()) continue;
    const std::optional<Hello> hello = Hello::FromWire(arrival->hello);
    if (!hello.has_value()) continue;
    std::string frame, why;
    if (hello->purpose == Purpose::kReplica) {
      frame = OtherKindFrame(hello->purpose);
      why = OtherKind(hello->purpose);
    } else if (hello->purpose == Purpose::kJoin) {
      why = Difference(own_, *hello, member_);
      const bool differs = !why.empty();
      if (!differs) {
        why =
            fmt::format("all {0}s are there, a {0} {1} among them; each needs a number of its own",
                        member_, hello->rank);
      }
      frame = JoinRefusal(Status(differs ? Code::kInvalidArgument : Code::kUnavailable, why));
    } else {
      continue;
    }
    if (clock.Now() - told >= kTell) {
      told = clock.Now();
      tell_(fmt::format("{}: {}", PeerText(arrival->socket.fd()), why));
    }
    static_cast<void>(arrival->socket.Send(frame, clock.Now() + kAnswerLimit));
  }
}

}  // namespace baltoro
