#pragma once

// How two ranks meet. Each says which protocol it speaks and a random number, then each proves with
// the cluster key that it knows both numbers; nothing else is read before that. Frames that follow
// are signed with a key made of both numbers. Once the ranks know each other the socket is released
// and its bytes are plain: this keeps strangers out and does not hide anything from who listens on
// the wire.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "comm/cluster_key.h"
#include "comm/rank_socket.h"

namespace baltoro {

// Counts up with every change of what ranks say to each other.
inline constexpr uint32_t kRankProtocol = 1;
inline constexpr size_t kHandshakeFrameBytesMax = 64 << 10;

class SealedSocket {
 public:
  enum class Side { kConnected, kAccepted };

  // kInvalidArgument if the peer is none of ours, speaks another version or has another key;
  // kUnavailable if it went away or took too long.
  static Result<SealedSocket> Open(RankSocket socket,
                                   std::string_view cluster_key,
                                   Side side,
                                   Seconds deadline);

  Status Send(std::string_view frame, Seconds deadline);
  Result<std::string> Receive(Seconds deadline);

  int fd() const { return socket_.get(); }
  RankSocket Release() { return std::move(socket_); }

 private:
  SealedSocket(RankSocket socket, Side side, const Digest& key)
      : socket_(std::move(socket)), side_(side), key_(key) {}

  Digest Seal(Side sender, uint64_t count, std::string_view frame) const;

  RankSocket socket_;
  Side side_;
  Digest key_;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace baltoro
