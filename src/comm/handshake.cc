#include "comm/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace baltoro {
namespace {

static_assert(std::endian::native == std::endian::little, "structs go over the wire as they are");

struct Greeting {
  char magic[8];  // the same for all versions, as is the size
  uint32_t version;
  uint32_t reserved;
  std::byte nonce[32];
};
static_assert(sizeof(Greeting) == 48);
constexpr char kMagic[8] = {'B', 'T', 'O', 'R', 'A', 'N', 'K', '\n'};

using Side = SealedSocket::Side;

std::string_view SideName(Side side) {
  return side == Side::kConnected ? "connected" : "accepted";
}
Side Other(Side side) {
  return side == Side::kConnected ? Side::kAccepted : Side::kConnected;
}

template <typename T>
std::span<const std::byte> ObjectBytes(const T& object) {
  return std::as_bytes(std::span(&object, 1));
}
template <typename T>
std::span<std::byte> WritableBytes(T* object) {
  return std::as_writable_bytes(std::span(object, 1));
}

Digest Proof(std::string_view cluster_key,
             std::string_view what,
             const Greeting& connected,
             const Greeting& accepted) {
  const std::array<std::span<const std::byte>, 3> parts = {BytesOf(what), ObjectBytes(connected),
                                                           ObjectBytes(accepted)};
  return Sign(BytesOf(cluster_key), parts);
}

}  // namespace

Result<SealedSocket> SealedSocket::Open(RankSocket socket,
                                        std::string_view cluster_key,
                                        Side side,
                                        Seconds deadline) {
  Greeting own{}, peers{};
  std::copy(std::begin(kMagic), std::end(kMagic), own.magic);
  own.version = kRankProtocol;
  FillRandom(own.nonce);
  BT_RETURN_IF_ERROR(WriteAll(socket.get(), ObjectBytes(own), deadline));
  BT_RETURN_IF_ERROR(ReadAll(socket.get(), WritableBytes(&peers), deadline));
  if (!std::equal(std::begin(kMagic), std::end(kMagic), peers.magic)) {
    return InvalidArgument("the peer is not a rank");
  }
  if (peers.version != kRankProtocol) {
    return InvalidArgument(fmt::format("the peer speaks version {} of the rank protocol, we {}",
                                       peers.version, kRankProtocol));
  }
  const Greeting& connected = side == Side::kConnected ? own : peers;
  const Greeting& accepted = side == Side::kConnected ? peers : own;
  const Digest proof = Proof(cluster_key, SideName(side), connected, accepted);
  BT_RETURN_IF_ERROR(WriteAll(socket.get(), ObjectBytes(proof), deadline));
  Digest peers_proof{};
  BT_RETURN_IF_ERROR(ReadAll(socket.get(), WritableBytes(&peers_proof), deadline));
  if (!SameDigest(peers_proof, Proof(cluster_key, SideName(Other(side)), connected, accepted))) {
    return InvalidArgument("the peer has another cluster key");
  }
  return SealedSocket(std::move(socket), side, Proof(cluster_key, "session", connected, accepted));
}

Digest SealedSocket::Seal(Side sender, uint64_t count, std::string_view frame) const {
  const std::array<std::span<const std::byte>, 3> parts = {BytesOf(SideName(sender)),
                                                           ObjectBytes(count), BytesOf(frame)};
  return Sign(key_, parts);
}

Status SealedSocket::Send(std::string_view frame, Seconds deadline) {
  if (frame.size() > kHandshakeFrameBytesMax) {
    return InvalidArgument(fmt::format("a handshake of {} bytes, {} are allowed", frame.size(),
                                       kHandshakeFrameBytesMax));
  }
  const auto bytes = static_cast<uint32_t>(frame.size());
  const Digest seal = Seal(side_, sent_++, frame);
  std::string all(sizeof(bytes), '\0');
  std::memcpy(all.data(), &bytes, sizeof(bytes));
  all += frame;
  all.append(reinterpret_cast<const char*>(seal.data()), seal.size());
  return WriteAll(socket_.get(), BytesOf(all), deadline);
}

Result<std::string> SealedSocket::Receive(Seconds deadline) {
  uint32_t bytes = 0;
  BT_RETURN_IF_ERROR(ReadAll(socket_.get(), WritableBytes(&bytes), deadline));
  if (bytes > kHandshakeFrameBytesMax) {
    return InvalidArgument(
        fmt::format("a handshake of {} bytes, {} are allowed", bytes, kHandshakeFrameBytesMax));
  }
  std::string frame(bytes, '\0');
  Digest seal{};
  BT_RETURN_IF_ERROR(ReadAll(
      socket_.get(), std::as_writable_bytes(std::span(frame.data(), frame.size())), deadline));
  BT_RETURN_IF_ERROR(ReadAll(socket_.get(), WritableBytes(&seal), deadline));
  if (!SameDigest(seal, Seal(Other(side_), received_++, frame))) {
    return InvalidArgument("a frame of the handshake is damaged");
  }
  return frame;
}

}  // namespace baltoro
