#pragma once

// One accepted connection: reads requests, hands them to the handler one at a time, sends what the
// exchange has ready, and keeps the deadlines. Belongs to one I/O thread. Private to the room.
//
// The socket is watched edge-triggered for reading, writing and the peer's end alike, registered
// once: the notes below remember what the kernel said, and Pump does all that they allow.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "net/byte_shares.h"
#include "net/event_loop.h"
#include "net/exchange.h"
#include "net/http_parser.h"
#include "net/socket.h"
#include "net/tls.h"

namespace baltoro {

class Connection : public EventLoop::Watcher {
 public:
  Connection(IoThread* io, uint64_t id, UniqueFd fd, std::string peer);

  Status Open();
  uint64_t id() const { return id_; }
  // What its client holds of unread answers, with all of the client's connections.
  ByteShares::Share& client() const { return *client_; }
  // Between requests, or waiting for the peer to close that sends nothing more: a peer that is
  // still sending would be answered by a reset, and perhaps not read why it was refused.
  bool idle() const;
  void OnEvents(uint32_t epoll_events) override;
  void OnTick(Seconds now);
  // Sends, finishes and reads as far as the peer and the kernel allow.
  void Pump();
  // A request without an answer, whole or not, is answered by 503.
  void RefuseUnanswered();
  // At once; an unfinished exchange learns of it. The object lives to the end of the iteration.
  void Close();

 private:
  enum class State {
    kHandshake,  // of TLS, where the server speaks it
    kIdle,       // no byte of a request yet
    kHead,       // inside a request's head
    kBody,       // inside its body
    kBusy,       // the handler has it
    kClosing,    // a last answer is being sent
    kLingering,  // sent; waiting for the peer to close, so that it reads the answer first
    kClosed
  };

  bool Handshake();
  bool FinishTls();
  ssize_t Send(std::string_view bytes);
  ssize_t Receive();
  bool Flush();
  bool SendSome();
  bool Read();
  bool FillInput(std::string_view* input);
  void Consume(std::string_view input);
  bool HoldBody();
  void ReleaseBody();
  void Dispatch();
  void FinishExchange();
  void SendError(int status, std::string_view reason);
  void StartLinger();
  void Discard();
  void Reset();  // closes so that the peer sees an error
  void Enter(State state);
  Seconds DeadlineOf(State state) const;
  bool BodyTooSlow(Seconds now) const;
  bool WriteStalled(Seconds now);

  IoThread* const io_;
  const uint64_t id_;
  UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;  // null: plain HTTP, or TLS is over
  const std::string peer_;
  const std::shared_ptr<ByteShares::Share> client_;
  State state_;
  Seconds since_;  // when the state's deadline began
  HttpParser parser_;
  std::shared_ptr<Exchange> exchange_;  // shared with the Responder
  size_t requests_ = 0;

  bool readable_ = true;
  bool writable_ = true;
  bool peer_ended_ = false;
  bool continue_sent_ = false;
  std::string leftover_;  // read, but of a later request; at most the read buffer
  size_t leftover_used_ = 0;
  size_t held_body_bytes_ = 0;  // of the unfinished request, as counted for the whole server
  std::shared_ptr<ByteShares::Share> body_share_;  // null: it has sent no body yet

  std::string out_;
  size_t sent_ = 0;  // of out_
  uint64_t sent_total_ = 0;
  Seconds stalled_since_ = 0;  // 0: nothing waits
  uint64_t stalled_at_ = 0;    // sent_total_ then
  size_t stalled_bytes_ = 0;   // the most that has waited since everything had gone
  Seconds heard_at_ = 0;       // while it lingers: when the peer last sent something
};

}  // namespace baltoro
