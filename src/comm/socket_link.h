#pragma once

// Ranks that are processes, or threads that each hold a link of their own. Two connections join
// each pair: this file's carry the messages and are read and written by the calling thread alone;
// those of PeerWatch carry heartbeats and failures.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/link.h"
#include "comm/peer_watch.h"
#include "comm/rank_socket.h"

struct pollfd;

namespace baltoro {

class SocketLink final : public Link {
 public:
  // `data` by rank, the own one invalid; its size is the world's. The watch is over the same ranks.
  SocketLink(int32_t rank, std::vector<RankSocket> data, std::unique_ptr<PeerWatch> watch);
  ~SocketLink() override;

  int32_t rank() const override { return rank_; }
  int32_t ranks() const override { return static_cast<int32_t>(peers_.size()); }
  Status Exchange(const MessageTag& tag,
                  std::span<const Outgoing> outgoing,
                  std::span<const Incoming> incoming,
                  Seconds deadline) override;
  void Abort(const std::string& reason) override;
  Status status() const override { return watch_->status(); }
  int32_t lost() const override { return watch_->lost(); }

 private:
  // Before each message. Little-endian, as the structs of the handshake.
  struct Header {
    uint32_t group;
    uint32_t operation;
    uint64_t count;  // of messages this way before this one
    uint64_t bytes;
  };
  struct Peer {
    RankSocket data;
    uint64_t sent = 0, received = 0;
  };
  // One message under way.
  struct Flight {
    int32_t peer;
    bool sending;
    Header header;  // what is sent, or what has come
    std::byte* bytes;
    size_t size;
    size_t done;  // of header and bytes together
    bool finished() const { return done == sizeof(Header) + size; }
  };

  void AddFlight(const MessageTag& tag, int32_t peer, bool sending, std::span<std::byte> bytes);
  Status RunFlights(const MessageTag& tag, Seconds deadline);
  Status Advance(const MessageTag& tag, Flight* flight);
  Status CheckHeader(const MessageTag& tag, const Flight& flight);
  Status FailLost(const MessageTag& tag, int32_t peer);
  Status FailLate(const MessageTag& tag);

  const int32_t rank_;
  std::vector<Peer> peers_;
  std::unique_ptr<PeerWatch> watch_;
  std::vector<Flight> flights_;  // of the exchange under way
  std::vector<pollfd> polls_;
  std::atomic<bool> busy_ = false;
};

}  // namespace baltoro
