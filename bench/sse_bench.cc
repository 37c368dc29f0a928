// What one streamed token costs the server: N streams, a stand-in producer that gives each one an
// event of about 190 bytes every tick, and a client in a process of its own. Prints the server
// process's CPU time per token (producer included), user and with the kernel's share, and how long
// an unrelated GET /health takes meanwhile.
//
//   sse_bench [--streams=1000] [--seconds=5] [--threads=1] [--tick-ms=20] [--direct] [--spread]
//
// --direct: the producer's thread writes to each stream itself instead of posting one batch to each
// I/O thread. --spread: a twentieth of the streams every millisecond instead of all at once.

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/http_client.h"
#include "net/http_server.h"
#include "net/socket.h"
#include "net/sse.h"

namespace baltoro {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Flags {
  size_t streams = 1000;
  double seconds = 5;
  size_t threads = 1;
  int tick_ms = 20;
  bool direct = false;
  bool spread = false;
};

struct ClientReport {
  uint64_t events = 0;
  uint64_t ended = 0;  // streams that came to their proper end
  double health_p50_ms = 0, health_p99_ms = 0, health_max_ms = 0;
  uint64_t health_requests = 0;
};

double Percentile(std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

// --- The client's process -------------------------------------------------------------------

void ProbeHealth(int port, const std::atomic<bool>& stop, std::vector<double>* milliseconds) {
  HttpClient client({.port = port});
  while (!stop) {
    const auto start = SteadyClock::now();
    if (!client.Send({.target = "/health"}).ok()) std::abort();
    milliseconds->push_back(
        std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count());
    if (milliseconds->size() % 500 == 0) client.Close();  // before the server's own limit
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

struct StreamEnd {
  UniqueFd fd;
  uint64_t events = 0;
  std::string tail;  // the last bytes, to recognise the end
};

// Counts events by their one "choices", wherever the reads cut them.
void Count(StreamEnd& stream, std::string_view bytes) {
  constexpr std::string_view kMark = "\"choices\"";
  std::string text = stream.tail;
  text += bytes;
  for (size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + 1)) {
    stream.events += 1;
  }
  stream.tail = text.substr(text.size() - std::min(text.size(), kMark.size() - 1));
}

ClientReport RunClient(int port, const Flags& flags) {
  std::vector<StreamEnd> streams(flags.streams);
  const UniqueFd epoll(epoll_create1(0));
  const std::string request = "GET /stream HTTP/1.1\r\nhost: bench\r\n\r\n";
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i].fd = ConnectTcp("127.0.0.1", port, 5).value();
    if (write(streams[i].fd.get(), request.data(), request.size()) < 0) std::abort();
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    epoll_ctl(epoll.get(), EPOLL_CTL_ADD, streams[i].fd.get(), &event);
  }
  std::atomic<bool> stop = false;
  std::vector<double> health;
  std::thread probe([&] { ProbeHealth(port, stop, &health); });

  ClientReport report;
  std::vector<char> buffer(65536);
  std::vector<epoll_event> events(256);
  for (size_t open = streams.size(); open > 0;) {
    const int ready = epoll_wait(epoll.get(), events.data(), 256, 10'000);
    if (ready == 0) break;  // reported as streams that did not end
    for (int e = 0; e < ready; ++e) {
      StreamEnd& stream = streams[events[static_cast<size_t>(e)].data.u64];
      const ssize_t count = read(stream.fd.get(), buffer.data(), buffer.size());
      if (count > 0) Count(stream, std::string_view(buffer.data(), static_cast<size_t>(count)));
      const bool ended = count > 0 && stream.tail.ends_with("0\r\n\r\n");
      if (count > 0 && !ended) continue;
      report.ended += ended;
      stream.fd.Close();
      open -= 1;
    }
  }
  stop = true;
  probe.join();
  for (const StreamEnd& stream : streams) report.events += stream.events;
  std::sort(health.begin(), health.end());
  report.health_requests = health.size();
  report.health_p50_ms = Percentile(health, 0.5);
  report.health_p99_ms = Percentile(health, 0.99);
  report.health_max_ms = Percentile(health, 1);
  return report;
}

// --- The server's process -------------------------------------------------------------------

// Streams by I/O thread. Each list is touched by its thread alone, or with --direct by the
// producer alone, once all streams are there.
struct Streams {
  std::mutex mutex;
  size_t count = 0;
  std::vector<std::vector<Responder>> by_thread;
};

void Feed(std::vector<Responder>& streams, size_t first, size_t stride, uint64_t step, bool last) {
  std::string event;
  for (size_t i = first; i < streams.size(); i += stride) {
    event.clear();
    fmt::format_to(std::back_inserter(event),
                   "data: {{\"id\":\"chatcmpl-{:032x}\",\"object\":\"chat.completion.chunk\","
                   "\"created\":1795000000,\"model\":\"pocket\",\"choices\":[{{\"index\":0,"
                   "\"delta\":{{\"content\":\" token{}\"}},\"finish_reason\":null}}]}}\n\n",
                   i, step);
    if (!streams[i].Write(event)) std::abort();
    if (last) streams[i].End();
  }
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

uint64_t Produce(HttpServer& server, Streams& streams, const Flags& flags) {
  const size_t parts = flags.spread ? static_cast<size_t>(flags.tick_ms) : 1;
  const auto ticks = static_cast<uint64_t>(flags.seconds * 1000 / flags.tick_ms);
  const auto period = std::chrono::microseconds(1000 * flags.tick_ms) / parts;
  auto next = SteadyClock::now();
  for (uint64_t step = 0; step < ticks * parts; ++step) {
    next += period;
    std::this_thread::sleep_until(next);
    const bool last = step / parts == ticks - 1;
    for (size_t thread = 0; thread < streams.by_thread.size(); ++thread) {
      const auto feed = [&list = streams.by_thread[thread], step, parts, last] {
        Feed(list, step % parts, parts, step / parts, last);
      };
      if (flags.direct) {
        feed();
      } else {
        server.Post(thread, feed);
      }
    }
  }
  return ticks * flags.streams;
}

int RunServer(const Flags& flags, int port_pipe, int report_pipe) {
  Streams streams;
  streams.by_thread.resize(flags.threads);
  const auto handler = [&](HttpRequest request, Responder responder) {
    if (request.path == "/health") return responder.Send({});
    responder.StartStream(200);
    const std::lock_guard lock(streams.mutex);
    streams.by_thread[responder.io_thread()].push_back(std::move(responder));
    streams.count += 1;
  };
  auto listening = HttpServer::Listen({.port = 0, .threads = flags.threads}, handler);
  if (!listening.ok()) {
    fmt::print(stderr, "{}\n", listening.status().message());
    return 1;
  }
  HttpServer& server = *listening.value();
  const int port = server.port();
  if (write(port_pipe, &port, sizeof(port)) != sizeof(port)) return 1;
  for (bool all = false; !all;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::lock_guard lock(streams.mutex);
    all = streams.count == flags.streams;
  }

  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const uint64_t tokens = Produce(server, streams, flags);
  ClientReport report;
  if (read(report_pipe, &report, sizeof(report)) != sizeof(report)) return 1;
  getrusage(RUSAGE_SELF, &after);

  const double user = (Seconds(after.ru_utime) - Seconds(before.ru_utime)) * 1e6;
  const double kernel = (Seconds(after.ru_stime) - Seconds(before.ru_stime)) * 1e6;
  const auto per_token = [&](double us) { return us / static_cast<double>(tokens); };
  fmt::print(
      "{} streams, {} I/O threads, {} ms a token, {}{}\n"
      "  tokens sent {}, received {}, streams ended {}\n"
      "  server CPU per token: user {:.2f} us (at most 5), with the kernel {:.2f} us (at most 15)\n"
      "  GET /health meanwhile: p50 {:.2f} ms, p99 {:.2f} ms (under 20), max {:.2f} ms, n {}\n",
      flags.streams, flags.threads, flags.tick_ms,
      flags.direct ? "written from the producer's thread" : "one batch a step",
      flags.spread ? ", spread over the tick" : "", tokens, report.events, report.ended,
      per_token(user), per_token(user + kernel), report.health_p50_ms, report.health_p99_ms,
      report.health_max_ms, report.health_requests);
  server.Stop(0);
  return report.events == tokens && report.ended == flags.streams ? 0 : 1;
}

bool ParseFlag(const std::string& arg, Flags& flags) {
  const std::string name = arg.substr(0, arg.find('='));
  const char* const value = arg.c_str() + std::min(arg.size(), name.size() + 1);
  if (name == "--streams") flags.streams = std::strtoul(value, nullptr, 10);
  if (name == "--seconds") flags.seconds = std::strtod(value, nullptr);
  if (name == "--threads") flags.threads = std::strtoul(value, nullptr, 10);
  if (name == "--tick-ms") flags.tick_ms = static_cast<int>(std::strtol(value, nullptr, 10));
  if (name == "--direct") flags.direct = true;
  if (name == "--spread") flags.spread = true;
  return name == "--streams" || name == "--seconds" || name == "--threads" || name == "--tick-ms" ||
         name == "--direct" || name == "--spread";
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    if (!ParseFlag(argv[i], flags)) {
      fmt::print(stderr, "unknown flag {}; see the head of sse_bench.cc\n", argv[i]);
      return 2;
    }
  }
  int port_pipe[2], report_pipe[2];
  if (pipe(port_pipe) != 0 || pipe(report_pipe) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    int port = 0;
    if (read(port_pipe[0], &port, sizeof(port)) != sizeof(port)) _exit(1);
    const ClientReport report = RunClient(port, flags);
    _exit(write(report_pipe[1], &report, sizeof(report)) == sizeof(report) ? 0 : 1);
  }
  close(report_pipe[1]);  // a client that dies then ends the read
  const int result = RunServer(flags, port_pipe[1], report_pipe[0]);
  waitpid(child, nullptr, 0);
  return result;
}

}  // namespace
}  // namespace baltoro

int main(int argc, char** argv) {
  return baltoro::Main(argc, argv);
}
