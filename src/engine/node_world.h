#pragma once

// The nodes of one replica, each with one engine process. The head is node 0: it has the door and
// the scheduler, and tells the others what to run. Here nodes meet, find out whether they were
// started alike, agree on what must be the same, and carry plans; tensors go between ranks, in a
// world of their own (adr/0012).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/late_comers.h"
#include "comm/link.h"
#include "comm/rendezvous.h"

namespace baltoro {

// A process that is stopped for five seconds is to be waited for; one that died is noticed by its
// closed connections at once. This is for nodes that lost power.
inline constexpr Seconds kNodeStallTimeout = 10;

struct NodeOptions {
  int32_t node = 0, nodes = 1;
  std::string master_host = {};  // of the head, also its own
  int32_t master_port = 0;
  // The flags that say the two.
  std::string_view host_flag = "--master-addr", port_flag = "--master-port";
  std::string own_host = {};  // empty: that from which the head is reached
  std::string cluster_key = {};
  std::vector<FingerprintEntry> fingerprint = {};
  // By node, what messages add to its number and address: "replicas 8 to 15"; empty: nothing.
  std::vector<std::string> holds = {};
  // The head waits so long for the others; another node, for a head that is not there. 0: for ever.
  Seconds patience = 300;
};

// How ranks on several nodes meet: at the node that holds rank 0, on a port that is free there.
struct RankMeeting {
  RankAddress address;
  std::string session;  // of this start alone
  // At `address`, on the node of rank 0; null on the others.
  std::shared_ptr<RankSocket> listener = {};
};

class NodeWorld {
 public:
  // Blocks until all nodes are there; a line every ten seconds says who is waited for.
  // kInvalidArgument if nodes were not started alike, kNotFound if nobody came within `patience`,
  // kUnavailable if somebody went away again: then trying again may help.
  static Result<std::unique_ptr<NodeWorld>> Join(const NodeOptions& options);

  int32_t node() const { return link_->rank(); }
  int32_t nodes() const { return link_->ranks(); }
  const std::string& own_host() const { return own_host_; }

  // All nodes: everybody hears what each has to say, in their order. Waits for the slowest, as long
  // as it lives.
  Result<std::vector<std::string>> Gather(std::string_view own);

  // The head sends, all others receive; messages come in order. Between two hours may pass.
  Status Send(std::string_view message);
  Result<std::string> Receive();

  // Any thread. A rank of this node joins the world of all ranks.
  Result<std::unique_ptr<Link>> JoinRank(const RankMeeting& meeting,
                                         int32_t ranks,
                                         int32_t rank) const;

  // Any thread.
  void Abort(const std::string& reason) { link_->Abort(reason); }
  // The server stops of its own will: the others hear so.
  void Leave();
  Status status() const { return link_->status(); }
  // The node whose end is the failure, where it is one's; else -1.
  int32_t lost_node() const { return link_->lost(); }
  // What nodes know of a failure of their ranks, `why`: the end of a node ends the connections of
  // its ranks too, in any order, and only the nodes' says which node that was. Waits for it, but
  // not for long.
  Status Explain(const Status& why) const;

 private:
  NodeWorld(std::unique_ptr<Link> link, std::string own_host, std::string cluster_key)
      : link_(std::move(link)),
        own_host_(std::move(own_host)),
        cluster_key_(std::move(cluster_key)) {}

  const std::unique_ptr<Link> link_;
  std::unique_ptr<Communicator> all_;
  std::unique_ptr<LateComers> late_comers_;  // of the head
  const std::string own_host_, cluster_key_;
};

// All nodes call it together.
Result<RankMeeting> AgreeOnMeeting(NodeWorld& world, int32_t node_of_rank_0);

}  // namespace baltoro
