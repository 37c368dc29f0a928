#pragma once

// One I/O thread: an event loop, the connections it owns, and the list of exchanges with something
// to send. Private to the room.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "net/byte_shares.h"
#include "net/event_loop.h"
#include "net/exchange.h"
#include "net/http_server.h"

namespace baltoro {

// What the threads of one server share. All of it outlives them.
struct ServerShared {
  const HttpServerOptions* options;
  const HttpServer::Handler* handler;
  std::atomic<size_t>* open_connections;
  ByteShares* bodies;
  ByteShares* answers;
  const std::atomic<bool>* draining;
};

class IoThread {
 public:
  static Result<std::unique_ptr<IoThread>> Create(const ServerShared& shared, size_t index);
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  void Start();
  // Breaks off every connection and joins.
  void StopAndJoin();

  // Any thread.
  EventLoop& loop() { return *loop_; }
  size_t index() const { return index_; }
  const HttpServerOptions& options() const { return *shared_.options; }
  bool draining() const { return *shared_.draining; }
  std::string ErrorBody(int status, std::string_view reason, std::string_view path) const;
  ByteShares& answers() const { return *shared_.answers; }
  void MarkDirty(std::shared_ptr<Exchange> exchange);

  // The I/O thread only.
  void Adopt(UniqueFd fd, std::string peer);  // the connection is already counted
  void CloseIdle();
  void RefuseUnanswered();
  void Bury(Connection* connection);  // closed; freed at the end of the iteration
  void PumpLater(uint64_t connection_id);
  ByteShares& bodies() { return *shared_.bodies; }
  const HttpServer::Handler& handler() const { return *shared_.handler; }
  char* read_buffer() { return read_buffer_.data(); }
  size_t read_buffer_bytes() const { return read_buffer_.size(); }

 private:
  IoThread(const ServerShared& shared, size_t index, std::unique_ptr<EventLoop> loop);

  void DrainDirty();
  // For loops in which one may leave the map.
  std::vector<Connection*> Connections() const;
  void CloseAll();
  void OnTick();

  ServerShared shared_;
  const size_t index_;
  std::unique_ptr<EventLoop> loop_;
  Seconds tick_period_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> graveyard_;
  std::vector<char> read_buffer_;  // one for all connections: each keeps only what it cannot use
  std::vector<std::shared_ptr<Exchange>> draining_list_;
  size_t drained_ = 0;
  std::thread thread_;

  std::mutex dirty_mutex_;
  std::vector<std::shared_ptr<Exchange>> dirty_;
};

}  // namespace baltoro
