// A server that does nothing but stream, for measuring a client: it answers every POST with chunks
// of an OpenAI completion, one each STEP milliseconds to all streams at once, whose text is the
// time at which the chunk was written (nanoseconds of CLOCK_MONOTONIC). bench/client_adds.py reads
// them.
//
//     stream_clock PORT CHUNKS STEP_MS      on loopback, until it is killed

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Stream {
  std::string unread;  // of a request that is not all there
  int left = 0;        // chunks to come; 0: no request is being answered
};

int64_t Nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// A chunk of HTTP around an event. Sockets have room for all of a run: a short write ends the
// stream.
bool SendEvent(int fd, std::string_view event) {
  const std::string chunk = fmt::format("{:x}\r\ndata: {}\n\n\r\n", event.size() + 8, event);
  return write(fd, chunk.data(), chunk.size()) == static_cast<ssize_t>(chunk.size());
}

bool SendNext(int fd, Stream& stream, int chunks) {
  if (!SendEvent(fd, fmt::format(R"({{"id":"c","object":"text_completion","created":1,"model":"m",)"
                                 R"("choices":[{{"index":0,"text":"{} ","finish_reason":{}}}]}})",
                                 Nanoseconds(), stream.left == 1 ? "\"length\"" : "null"))) {
    return false;
  }
  if (--stream.left > 0) return true;
  return SendEvent(fd, fmt::format(R"({{"id":"c","object":"text_completion","created":1,)"
                                   R"("model":"m","choices":[],"usage":{{"prompt_tokens":1,)"
                                   R"("completion_tokens":{0},"total_tokens":{1}}}}})",
                                   chunks, chunks + 1)) &&
         SendEvent(fd, "[DONE]") && write(fd, "0\r\n\r\n", 5) == 5;
}

// False: the connection is over.
bool TakeRequest(int fd, Stream& stream, int chunks) {
  std::array<char, 65536> part{};
  const ssize_t got = read(fd, part.data(), part.size());
  if (got <= 0) return false;
  stream.unread.append(part.data(), static_cast<size_t>(got));
  const size_t head = stream.unread.find("\r\n\r\n");
  if (head == std::string::npos) return stream.unread.size() < part.size();
  size_t body = 0;
  for (const std::string_view name : {"Content-Length: ", "content-length: "}) {
    const size_t at = stream.unread.find(name);
    if (at >= head) continue;
    std::from_chars(stream.unread.data() + at + name.size(), stream.unread.data() + head, body);
  }
  if (stream.unread.size() < head + 4 + body) return true;
  const bool get = stream.unread.starts_with("GET ");
  stream.unread.clear();
  const std::string_view answer =
      get ? "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
          : "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
            "chunked\r\n\r\n";
  if (!get) stream.left = chunks;
  return write(fd, answer.data(), answer.size()) == static_cast<ssize_t>(answer.size());
}

int Listen(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  if (bind(fd, any, sizeof address) != 0 || listen(fd, 4096) != 0) return -1;
  return fd;
}

void Watch(int poll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
}

int Number(const char* word) {
  int value = 0;
  const std::string_view text(word);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  const int port = argc == 4 ? Number(argv[1]) : 0, chunks = argc == 4 ? Number(argv[2]) : 0;
  const int step_ms = argc == 4 ? Number(argv[3]) : 0;
  if (port < 1 || chunks < 1 || step_ms < 1 || step_ms > 999) {
    std::fputs("usage: stream_clock PORT CHUNKS STEP_MS\n", stderr);
    return 2;
  }
  const int listener = Listen(port);
  if (listener < 0) {
    std::perror("stream_clock: cannot listen");
    return 1;
  }
  const int poll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  const timespec step{.tv_sec = 0, .tv_nsec = step_ms * 1'000'000};
  const itimerspec times{.it_interval = step, .it_value = step};
  timerfd_settime(timer, 0, &times, nullptr);
  Watch(poll, listener);
  Watch(poll, timer);
  std::map<int, Stream> streams;
  std::vector<int> ended;  // closed after the batch: a number may come again in it
  const auto end = [&](int fd) {
    if (streams.erase(fd) > 0) ended.push_back(fd);
  };
  std::array<epoll_event, 256> events{};
  for (;;) {
    const int count = epoll_wait(poll, events.data(), events.size(), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == listener) {
        const int client = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
        if (client < 0) continue;
        const int on = 1;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        streams[client];
        Watch(poll, client);
      } else if (fd == timer) {
        uint64_t turns = 0;
        if (read(timer, &turns, sizeof turns) < 0) continue;
        for (auto at = streams.begin(); at != streams.end();) {
          const int client = at->first;
          Stream& stream = (at++)->second;
          if (stream.left > 0 && !SendNext(client, stream, chunks)) end(client);
        }
      } else if (const auto at = streams.find(fd);
                 at != streams.end() && !TakeRequest(fd, at->second, chunks)) {
        end(fd);
      }
    }
    for (const int fd : ended) close(fd);
    ended.clear();
  }
}
