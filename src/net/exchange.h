#pragma once

// What a Responder and a Connection share about one request's answer: bytes on their way from any
// thread to the I/O thread. Private to the room.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "net/byte_shares.h"
#include "net/http_message.h"

namespace baltoro {

class Connection;
class IoThread;

// How the answer to one request must be framed.
struct AnswerFraming {
  bool head = false;        // a HEAD request: no body
  bool http10 = false;      // no chunks; a stream ends with the connection
  bool keep_alive = false;  // as the client asked and the server allows
};

// Of an answer that net gives by itself: a 503 says when to come again.
HttpHeaders RefusalHeaders(int status);

// A whole answer with its framing headers.
std::string SerializeResponse(const HttpResponse& response, const AnswerFraming& framing);

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(IoThread* io, Connection* connection, AnswerFraming framing, std::string path);

  // Any thread; see Responder.
  bool Reserve(size_t bytes);
  void Send(HttpResponse response);
  void StartStream(int status, const HttpHeaders& headers);
  bool Write(std::string_view bytes);
  void End();
  void Abort();
  void Drop();
  bool gone() const { return gone_; }
  void OnGone(std::function<void()> on_gone);
  size_t io_index() const { return io_index_; }

  // I/O thread only.
  Connection* connection() const { return connection_; }
  // Moves what was written since the last call to the end of `out`. False: break the answer off.
  bool TakeOutput(std::string& out);
  // Answers instead of the handler, if that has not begun to; from then on it is gone.
  void Refuse(int status, std::string_view reason);
  // Bytes of this answer have gone to the kernel.
  void Release(size_t bytes);
  void set_unsent(size_t bytes) { unsent_.store(bytes, std::memory_order_relaxed); }
  bool ended() const;     // the answer is complete, though perhaps not sent
  bool finished() const;  // complete and taken
  bool close_after() const;
  void Detach();    // the answer is sent; the connection goes on without this exchange
  void MarkGone();  // the connection is lost; tells whoever asked to know

 private:
  enum class Phase { kOpen, kStreaming, kEnded };

  void AppendChunk(std::string_view bytes);
  // Counts bytes that this answer has waiting. False, and they are not counted: too many.
  bool Hold(size_t bytes);
  void HoldAnyway(size_t bytes);
  void LetGo(size_t bytes);
  void Answer(const HttpResponse& response);
  void Queue();  // asks the I/O thread to come for the inbox; with mutex_ held and not gone

  // Valid while !gone_ and not detached, as is client_. Queue is called under mutex_ only, which
  // MarkGone takes before the thread ends.
  IoThread* io_;
  const size_t io_index_;
  Connection* connection_;     // null after Detach or MarkGone
  ByteShares::Share& client_;  // the connection's
  const AnswerFraming framing_;
  const std::string path_;
  const size_t stream_buffer_bytes_;

  mutable std::mutex mutex_;
  size_t unsent_max_;  // stream_buffer_bytes_, and room for single writes that are larger
  Phase phase_ = Phase::kOpen;
  std::string inbox_;
  bool queued_ = false;
  bool aborted_ = false;
  bool refused_ = false;  // answered instead of the handler, whose calls are then nothing
  bool close_after_ = false;
  std::function<void()> on_gone_;
  size_t held_ = 0;      // of what the client holds
  size_t reserved_ = 0;  // of held_: for an answer that is still to come

  std::atomic<bool> gone_ = false;
  std::atomic<size_t> unsent_ = 0;  // taken by the connection but not by the kernel
};

}  // namespace baltoro
