#include "engine/draft_team.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/link_communicator.h"

namespace baltoro {
namespace {

// The others wait here for all that comes before sampling is done; who dies is noticed without it.
constexpr Seconds kCallTimeout = 600;

// The first of the group is the rank that samples (Samples).
constexpr int32_t kTeller = 0;

struct Told {
  int32_t valid_rows, next, wanted;
};

}  // namespace

Result<std::unique_ptr<DraftTeam>> DraftTeam::Join(Link* link, ModelRanks* target) {
  const RankShare& share = target->share();
  BT_CHECK(share.last_stage());
  GroupOptions options{.name = "draft", .ranks = {}, .call_timeout = kCallTimeout};
  for (int32_t rank = 0; rank < share.layout.ranks(); ++rank) {
    const RankPlace place = PlaceOf(share.layout, rank);
    if (place.stage == share.place.stage && place.data == share.place.data) {
      options.ranks.push_back(rank);
    }
  }
  BT_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group, JoinGroup(link, options));
  return std::unique_ptr<DraftTeam>(new DraftTeam(ModelRanks::Beside(*target), std::move(group)));
}

Status DraftTeam::Agree(std::span<DraftSequence> sequences) {
  std::vector<Told> told;
  for (const DraftSequence& one : sequences) {
    told.push_back({.valid_rows = one.valid_rows, .next = one.next, .wanted = one.wanted});
  }
  BT_RETURN_IF_ERROR(group_->Broadcast(std::as_writable_bytes(std::span(told)), kTeller));
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].valid_rows = told[i].valid_rows;
    sequences[i].next = told[i].next;
    sequences[i].wanted = told[i].wanted;
  }
  return {};
}

}  // namespace baltoro
