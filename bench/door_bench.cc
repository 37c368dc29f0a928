// What the door costs per streamed token: the real server (HTTP, template, tokenizer, parser, JSON)
// over a stand-in engine that ticks every 20 ms and gives each stream one token a tick. Server and
// client are separate processes; the server's own resource usage is what is printed, beside the
// latency of /health under that load.
//
//   door_bench MODEL_DIR [--streams 1000] [--seconds 8] [--threads 1] [--tick-ms 20]

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/server.h"

namespace baltoro {
namespace {

struct Options {
  std::string model_dir;
  int streams = 1000;
  double seconds = 8;
  int threads = 1;
  int tick_ms = 20;
};

// Gives every running request one ordinary token a tick.
class TickingEngine final : public Engine {
 public:
  TickingEngine(EventSink sink, int tick_ms) : sink_(std::move(sink)) {
    info_.model_type = "stand-in";
    info_.max_model_len = 1 << 20;
    info_.vocab_size = 2304;
    thread_ = std::jthread([this, tick_ms](const std::stop_token& stop) {
      auto next = std::chrono::steady_clock::now();
      while (!stop.stop_requested()) {
        next += std::chrono::milliseconds(tick_ms);
        std::this_thread::sleep_until(next);
        Tick();
      }
    });
  }

  Status Submit(Request request) override {
    const std::lock_guard lock(mutex_);
    running_[static_cast<uint64_t>(request.id)] = 0;
    return {};
  }
  void Abort(RequestId id) override {
    const std::lock_guard lock(mutex_);
    if (running_.erase(static_cast<uint64_t>(id)) > 0) aborted_.push_back(id);
  }
  EngineStats stats() const override { return {.generation_tokens = tokens_}; }
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override { return {}; }
  uint64_t tokens() const { return tokens_; }

 private:
  void Tick() {
    std::vector<TokenEvent> events;
    {
      const std::lock_guard lock(mutex_);
      for (auto& [id, count] : running_) {
        TokenEvent event;
        event.request = RequestId{id};
        event.tokens = {static_cast<TokenId>(300 + count++ % 1500)};
        events.push_back(std::move(event));
      }
      for (const RequestId id : aborted_) {
        TokenEvent event;
        event.request = id;
        event.finish = FinishReason::kAbort;
        events.push_back(std::move(event));
      }
      aborted_.clear();
      tokens_ += events.size();
    }
    if (!events.empty()) sink_(std::move(events));
  }

  EventSink sink_;
  EngineInfo info_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> running_;
  std::vector<RequestId> aborted_;
  std::atomic<uint64_t> tokens_{0};
  std::jthread thread_;
};

// What the server process tells the client process.
struct Report {
  int port = 0;
  double user_us = 0, system_us = 0;
  uint64_t tokens = 0;
};

double Microseconds(const timeval& time) {
  return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
}

// The server process: says its port, then answers each byte on `in` with its usage and tokens so
// far.
int RunServer(const Options& options, int in, int out) {
  auto tokenizer = Tokenizer::Load(options.model_dir);
  auto chat_template = ChatTemplate::LoadFromDir(options.model_dir);
  if (!tokenizer.ok() || !chat_template.ok()) {
    fmt::print(stderr, "{} {}\n", tokenizer.status().message(), chat_template.status().message());
    return 1;
  }
  ServerConfig config;
  config.http.port = 0;
  config.http.threads = static_cast<size_t>(options.threads);
  config.model_names = {"stand-in"};
  auto server = Server::Listen(std::move(config), std::move(tokenizer).value(),
                               std::move(chat_template).value());
  if (!server.ok()) {
    fmt::print(stderr, "{}\n", server.status().message());
    return 1;
  }
  TickingEngine engine(server.value()->sink(), options.tick_ms);
  server.value()->SetEngine(&engine);
  std::jthread ticker([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      server.value()->Tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  char ask = 0;
  do {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const Report report{server.value()->port(), Microseconds(usage.ru_utime),
                        Microseconds(usage.ru_stime), engine.tokens()};
    if (write(out, &report, sizeof report) != sizeof report) return 1;
  } while (read(in, &ask, 1) == 1);
  std::_Exit(0);
}

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -1;
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

bool SendAll(int fd, const std::string& bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// Reads whatever comes on `fds`, without looking at it, until told to stop.
void Drain(const std::vector<int>& fds,
           const std::atomic<bool>& stop,
           std::atomic<uint64_t>& bytes) {
  const int epoll = epoll_create1(0);
  for (const int fd : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  }
  std::vector<epoll_event> ready(1024);
  std::vector<char> buffer(1 << 16);
  while (!stop) {
    const int count = epoll_wait(epoll, ready.data(), static_cast<int>(ready.size()), 50);
    for (int i = 0; i < count; ++i) {
      const ssize_t got =
          recv(ready[static_cast<size_t>(i)].data.fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got > 0) bytes += static_cast<uint64_t>(got);
    }
  }
  close(epoll);
}

std::vector<double> MeasureHealth(int port, double seconds) {
  std::vector<double> latencies;
  const int fd = ConnectTo(port);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  char buffer[4096];
  while (std::chrono::steady_clock::now() < end) {
    const auto start = std::chrono::steady_clock::now();
    if (!SendAll(fd, "GET /health HTTP/1.1\r\nHost: bench\r\n\r\n") ||
        recv(fd, buffer, sizeof buffer, 0) <= 0)
      break;
    latencies.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  close(fd);
  std::sort(latencies.begin(), latencies.end());
  return latencies;
}

int RunClient(const Options& options, int in, int out) {
  Report first;
  const auto ask = [&](Report& report) {
    const char byte = 1;
    return write(out, &byte, 1) == 1 && read(in, &report, sizeof report) == sizeof report;
  };
  if (read(in, &first, sizeof first) != sizeof first) return 1;
  const std::string body =
      R"({"model":"stand-in","stream":true,"max_tokens":100000,"messages":[{"role":"user","content":"Hello!"}]})";
  const std::string request = fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: "
      "application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
  std::vector<int> fds;
  for (int i = 0; i < options.streams; ++i) {
    const int fd = ConnectTo(first.port);
    if (fd < 0 || !SendAll(fd, request)) {
      fmt::print(stderr, "connection {} failed: {}\n", i, std::strerror(errno));
      return 1;
    }
    fds.push_back(fd);
  }
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> bytes{0};
  std::jthread drainer([&] { Drain(fds, stop, bytes); });
  std::this_thread::sleep_for(std::chrono::seconds(2));

  Report before, after;
  if (!ask(before)) return 1;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<double> health = MeasureHealth(first.port, options.seconds);
  if (!ask(after)) return 1;
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  stop = true;
  drainer.join();

  const auto tokens = static_cast<double>(after.tokens - before.tokens);
  const double user = (after.user_us - before.user_us) / tokens;
  const double total = user + (after.system_us - before.system_us) / tokens;
  const auto at = [&](double share) {
    return health.empty()
               ? -1
               : health[static_cast<size_t>(share * static_cast<double>(health.size() - 1))];
  };
  fmt::print(
      "streams {}  threads {}  tokens/s {:.0f}  user us/token {:.2f} (target 5)  user+kernel "
      "us/token {:.2f} (target 15)\n",
      options.streams, options.threads, tokens / elapsed, user, total);
  fmt::print("/health ms: p50 {:.2f}  p99 {:.2f} (target 20)  max {:.2f}  of {}\n", at(0.5),
             at(0.99), at(1), health.size());
  for (const int fd : fds) close(fd);
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--streams" && has_value)
      options.streams = std::atoi(argv[++i]);
    else if (word == "--seconds" && has_value)
      options.seconds = std::atof(argv[++i]);
    else if (word == "--threads" && has_value)
      options.threads = std::atoi(argv[++i]);
    else if (word == "--tick-ms" && has_value)
      options.tick_ms = std::atoi(argv[++i]);
    else
      options.model_dir = word;
  }
  if (options.model_dir.empty()) {
    fmt::print(
        stderr,
        "usage: door_bench MODEL_DIR [--streams N] [--seconds S] [--threads N] [--tick-ms N]\n");
    return 2;
  }
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  int to_server[2];
  int to_client[2];
  if (pipe(to_server) != 0 || pipe(to_client) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    close(to_server[1]);
    return RunServer(options, to_server[0], to_client[1]);
  }
  close(to_server[0]);
  close(to_client[1]);
  const int result = RunClient(options, to_client[0], to_server[1]);
  close(to_server[1]);
  waitpid(child, nullptr, 0);
  return result;
}

}  // namespace
}  // namespace baltoro

int main(int argc, char** argv) {
  return baltoro::Main(argc, argv);
}
