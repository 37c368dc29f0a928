#include "net/http_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

#include "base/check.h"
#include "net/acceptor.h"
#include "net/io_thread.h"

namespace baltoro {
namespace {

Status RequirePositive(const char* name, double value) {
  if (value > 0) return {};
  return InvalidArgument(fmt::format("{} is {}, but must be above 0", name, value));
}

Result<UniqueFd> OpenListener(const HttpServerOptions& options) {
  const SocketTuning tuning{.backlog = options.backlog,
                            .send_buffer_bytes = options.send_buffer_bytes,
                            .user_timeout = options.write_stall};
  if (!options.uds.empty()) return ListenUnix(options.uds, tuning);
  return ListenTcp(options.host, options.port, tuning);
}

}  // namespace

Status HttpServerOptions::Validate() const {
  BT_RETURN_IF_ERROR(RequirePositive("threads", static_cast<double>(threads)));
  BT_RETURN_IF_ERROR(RequirePositive("connections", static_cast<double>(connections)));
  BT_RETURN_IF_ERROR(RequirePositive("handshake_deadline", handshake_deadline));
  BT_RETURN_IF_ERROR(RequirePositive("header_deadline", header_deadline));
  BT_RETURN_IF_ERROR(RequirePositive("body_deadline", body_deadline));
  BT_RETURN_IF_ERROR(RequirePositive("body_rate_grace", body_rate_grace));
  BT_RETURN_IF_ERROR(RequirePositive("keep_alive_idle", keep_alive_idle));
  BT_RETURN_IF_ERROR(RequirePositive("write_stall", write_stall));
  BT_RETURN_IF_ERROR(RequirePositive("answer_deadline", answer_deadline));
  BT_RETURN_IF_ERROR(RequirePositive("linger", linger));
  return RequirePositive("backlog", backlog);
}

Responder::Responder(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

Responder& Responder::operator=(Responder&& other) noexcept {
  Drop();
  exchange_ = std::move(other.exchange_);
  return *this;
}

Responder::~Responder() {
  Drop();
}

void Responder::Drop() {
  if (exchange_ != nullptr) std::exchange(exchange_, nullptr)->Drop();
}

bool Responder::Reserve(size_t bytes) {
  return exchange_->Reserve(bytes);
}
void Responder::Send(HttpResponse response) {
  exchange_->Send(std::move(response));
}
void Responder::StartStream(int status, const HttpHeaders& headers) {
  exchange_->StartStream(status, headers);
}
bool Responder::Write(std::string_view bytes) {
  return exchange_->Write(bytes);
}
void Responder::End() {
  exchange_->End();
}
void Responder::Abort() {
  exchange_->Abort();
}
bool Responder::client_gone() const {
  return exchange_->gone();
}
void Responder::OnClientGone(std::function<void()> on_gone) {
  exchange_->OnGone(std::move(on_gone));
}
size_t Responder::io_thread() const {
  return exchange_->io_index();
}

HttpServer::HttpServer(HttpServerOptions options, Handler handler)
    : options_(std::move(options)), handler_(std::move(handler)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::Bind(HttpServerOptions options, Handler handler) {
  BT_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(options), std::move(handler)));
  BT_ASSIGN_OR_RETURN(server->listener_, OpenListener(server->options_));
  BT_ASSIGN_OR_RETURN(server->port_, BoundPort(server->listener_.get()));
  server->on_loopback_ = BoundToLoopback(server->listener_.get());
  return server;
}

Status HttpServer::Start() {
  const ServerShared shared{.options = &options_,
                            .handler = &handler_,
                            .open_connections = &open_connections_,
                            .bodies = &bodies_,
                            .answers = &answers_,
                            .draining = &draining_};
  std::vector<IoThread*> threads;
  for (size_t i = 0; i < options_.threads; ++i) {
    BT_ASSIGN_OR_RETURN(std::unique_ptr<IoThread> thread, IoThread::Create(shared, i));
    threads.push_back(thread.get());
    threads_.push_back(std::move(thread));
  }
  for (IoThread* thread : threads) thread->Start();
  BT_ASSIGN_OR_RETURN(acceptor_, Acceptor::Start(std::move(listener_), options_.connections,
                                                 &open_connections_, std::move(threads)));
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(HttpServerOptions options, Handler handler) {
  BT_ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> server,
                      Bind(std::move(options), std::move(handler)));
  BT_RETURN_IF_ERROR(server->Start());
  return server;
}

HttpServer::~HttpServer() {
  Stop(0);
}

void HttpServer::Post(size_t io_thread, std::function<void()> work) {
  BT_CHECK(io_thread < threads_.size());
  threads_[io_thread]->loop().Post(std::move(work));
}

void HttpServer::StopAccepting() {
  if (acceptor_ == nullptr && !listener_.valid()) return;
  acceptor_.reset();
  listener_.Close();
  if (!options_.uds.empty()) unlink(options_.uds.c_str());
}

void HttpServer::RefuseUnanswered() {
  if (stopped_) return;
  std::vector<std::future<void>> done;
  for (auto& thread : threads_) {
    const auto told = std::make_shared<std::promise<void>>();
    done.push_back(told->get_future());
    thread->loop().Post([&thread, told] {
      thread->RefuseUnanswered();
      told->set_value();
    });
  }
  // A thread that does not come round is not waited for longer.
  for (std::future<void>& one : done) one.wait_for(std::chrono::milliseconds(500));
}

void HttpServer::Stop(Seconds drain) {
  if (stopped_) return;
  stopped_ = true;
  StopAccepting();
  draining_ = true;
  const MonotonicClock clock;
  const Seconds deadline = clock.Now() + drain;
  constexpr Seconds kIdleSweep = 0.05;  // long enough for a last answer to leave
  for (Seconds swept = 0; open_connections_ > 0 && clock.Now() < deadline;) {
    if (clock.Now() > swept + kIdleSweep) {
      swept = clock.Now();
      for (auto& thread : threads_) thread->loop().Post([&thread] { thread->CloseIdle(); });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (auto& thread : threads_) thread->StopAndJoin();
}

}  // namespace baltoro
