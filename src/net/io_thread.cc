#include "net/io_thread.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "net/connection.h"

namespace baltoro {
namespace {

// Exchanges served before the loop looks at its sockets again: bounds what a short request waits
// behind a step that feeds a thousand streams.
constexpr size_t kDirtyBatch = 64;
constexpr size_t kReadBufferBytes = 64 << 10;

Seconds TickPeriod(const HttpServerOptions& options) {
  const Seconds shortest = std::min({options.handshake_deadline, options.header_deadline,
                                     options.body_deadline, options.body_rate_grace,
                                     options.keep_alive_idle, options.write_stall, options.linger});
  return std::clamp(shortest / 8, 0.005, 1.0);
}

}  // namespace

IoThread::IoThread(const ServerShared& shared, size_t index, std::unique_ptr<EventLoop> loop)
    : shared_(shared),
      index_(index),
      loop_(std::move(loop)),
      tick_period_(TickPeriod(*shared.options)),
      read_buffer_(kReadBufferBytes) {
  loop_->set_on_tick([this] { OnTick(); });
  loop_->set_on_iteration_end([this] { graveyard_.clear(); });
}

Result<std::unique_ptr<IoThread>> IoThread::Create(const ServerShared& shared, size_t index) {
  BT_ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::Create());
  return std::unique_ptr<IoThread>(new IoThread(shared, index, std::move(loop)));
}

IoThread::~IoThread() {
  BT_CHECK(!thread_.joinable());
}

void IoThread::Start() {
  thread_ = std::thread([this] { loop_->Run(); });
}

void IoThread::StopAndJoin() {
  if (!thread_.joinable()) return;
  BT_CHECK(std::this_thread::get_id() != thread_.get_id());
  loop_->Post([this] { CloseAll(); });
  loop_->Stop();
  thread_.join();
}

std::string IoThread::ErrorBody(int status, std::string_view reason, std::string_view path) const {
  if (options().error_body) return options().error_body(status, reason, path);
  std::string body = R"({"error":{"message":)";
  AppendJsonString(body, reason);
  body += R"(,"type":)";
  AppendJsonString(body, HttpReason(status));
  body += fmt::format(R"(,"param":null,"code":{}}}}})", status);
  return body;
}

void IoThread::MarkDirty(std::shared_ptr<Exchange> exchange) {
  const std::lock_guard lock(dirty_mutex_);
  // First, as both want memory: what is in the list waits for a post that is under way. DrainDirty
  // comes to the list when this has let go of it.
  if (dirty_.empty()) loop_->Post([this] { DrainDirty(); });
  dirty_.push_back(std::move(exchange));
}

void IoThread::DrainDirty() {
  if (drained_ == draining_list_.size()) {
    draining_list_.clear();
    drained_ = 0;
    const std::lock_guard lock(dirty_mutex_);
    draining_list_.swap(dirty_);
  }
  const size_t end = std::min(draining_list_.size(), drained_ + kDirtyBatch);
  for (; drained_ < end; ++drained_) {
    const std::shared_ptr<Exchange> exchange = std::move(draining_list_[drained_]);
    if (exchange->connection() != nullptr) exchange->connection()->Pump();
  }
  bool more = drained_ < draining_list_.size();
  if (!more) {
    const std::lock_guard lock(dirty_mutex_);
    more = !dirty_.empty();  // filled meanwhile; its own post finds it empty, which is harmless
  }
  if (more) loop_->Post([this] { DrainDirty(); });
}

void IoThread::Adopt(UniqueFd fd, std::string peer) {
  const uint64_t id = next_id_++;
  auto connection = std::make_unique<Connection>(this, id, std::move(fd), std::move(peer));
  Connection* raw = connection.get();
  connections_.emplace(id, std::move(connection));
  loop_->SetTick(tick_period_);
  if (const Status status = raw->Open(); !status.ok()) {
    BT_LOG_LIMITED(Warning, "a connection could not be watched: {}", status.message());
    raw->Close();
  }
}

void IoThread::Bury(Connection* connection) {
  const auto found = connections_.find(connection->id());
  BT_CHECK(found != connections_.end());
  graveyard_.push_back(std::move(found->second));
  connections_.erase(found);
  *shared_.open_connections -= 1;
  if (connections_.empty()) loop_->SetTick(0);
}

void IoThread::PumpLater(uint64_t connection_id) {
  loop_->Post([this, connection_id] {
    const auto found = connections_.find(connection_id);
    if (found != connections_.end()) found->second->Pump();
  });
}

void IoThread::OnTick() {
  const Seconds now = loop_->Now();
  for (Connection* connection : Connections()) connection->OnTick(now);
}

std::vector<Connection*> IoThread::Connections() const {
  std::vector<Connection*> all;
  all.reserve(connections_.size());
  for (const auto& [id, connection] : connections_) all.push_back(connection.get());
  return all;
}

void IoThread::CloseIdle() {
  for (Connection* connection : Connections()) {
    if (connection->idle()) connection->Close();
  }
}

void IoThread::RefuseUnanswered() {
  for (Connection* connection : Connections()) connection->RefuseUnanswered();
}

void IoThread::CloseAll() {
  while (!connections_.empty()) connections_.begin()->second->Close();
}

}  // namespace baltoro
