#include "media/picture_process.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "media/picture_wire.h"

namespace baltoro {
namespace {

using Clock = std::chrono::steady_clock;

enum class Outcome { kDone, kGone, kLate };

// Waits until `fd` is ready; late once the deadline is over.
Outcome WaitFor(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return Outcome::kLate;
    pollfd one = {.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&one, 1, static_cast<int>(std::min<int64_t>(left + 1, 60'000)));
    if (ready > 0) return Outcome::kDone;
    if (ready < 0 && errno != EINTR) return Outcome::kGone;
  }
}

Outcome SendAll(int fd, const void* data, size_t size, Clock::time_point deadline) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      at += sent;
      size -= static_cast<size_t>(sent);
    } else if (sent < 0 && errno == EAGAIN) {
      if (const Outcome waited = WaitFor(fd, POLLOUT, deadline); waited != Outcome::kDone) {
        return waited;
      }
    } else if (errno != EINTR) {
      return Outcome::kGone;
    }
  }
  return Outcome::kDone;
}

Outcome ReceiveAll(int fd, void* out, size_t size, Clock::time_point deadline) {
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = recv(fd, at, size, MSG_DONTWAIT);
    if (got > 0) {
      at += got;
      size -= static_cast<size_t>(got);
    } else if (got < 0 && errno == EAGAIN) {
      if (const Outcome waited = WaitFor(fd, POLLIN, deadline); waited != Outcome::kDone) {
        return waited;
      }
    } else if (got == 0 || errno != EINTR) {
      return Outcome::kGone;
    }
  }
  return Outcome::kDone;
}

// The sentence of an answer, with nothing in it that a log or a client should not get.
Outcome ReceiveSentence(int fd, uint32_t bytes, Clock::time_point deadline, std::string& out) {
  if (bytes > kSentenceBytesMax) return Outcome::kGone;
  out.resize(bytes);
  const Outcome outcome = ReceiveAll(fd, out.data(), bytes, deadline);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return outcome;
}

bool IsRefusal(Code code) {
  return code == Code::kInvalidArgument || code == Code::kResourceExhausted;
}

// Whether these are patches that CutPatches could make.
bool IsPossible(const PictureAnswer& answer, const PictureJob& job) {
  const PictureRules& rules = job.rules;
  const auto side = [&](int32_t patches) {
    return patches >= rules.merge && patches <= rules.side_patches_max &&
           patches % rules.merge == 0;
  };
  if (!side(answer.grid_height) || !side(answer.grid_width)) return false;
  if (answer.pixels < 1 || answer.pixels > job.limits.pixels_max) return false;
  const int64_t patches = int64_t{answer.grid_height} * answer.grid_width;
  // Both sides are rounded up, by less than a token each.
  const int64_t rounded = 2 * int64_t{rules.merge + 1} * (rules.side_patches_max + rules.merge);
  return patches <= rules.patches_max + rounded &&
         answer.patch_bytes == static_cast<uint64_t>(patches) * 3 * rules.patch * rules.patch;
}

struct Exchange {
  Outcome outcome = Outcome::kGone;
  Result<PicturePatches> result = Status(Code::kInternal, "not received");
};

Exchange Ask(int fd, std::string_view file, const PictureJob& job, Clock::time_point deadline) {
  Exchange out;
  const auto failed = [&out](Outcome outcome) {
    out.outcome = outcome;
    return outcome != Outcome::kDone;
  };
  PictureAnswer answer;
  if (failed(SendAll(fd, &job, sizeof(job), deadline)) ||
      failed(SendAll(fd, file.data(), file.size(), deadline)) ||
      failed(ReceiveAll(fd, &answer, sizeof(answer), deadline))) {
    return out;
  }
  if (IsRefusal(answer.code)) {
    std::string sentence;
    if (failed(ReceiveSentence(fd, answer.sentence_bytes, deadline, sentence))) return out;
    out.result = Status(answer.code, std::move(sentence));
    return out;
  }
  if (answer.code != Code::kOk || !IsPossible(answer, job)) {
    out.outcome = Outcome::kGone;
    return out;
  }
  PicturePatches patches;
  patches.grid_height = answer.grid_height;
  patches.grid_width = answer.grid_width;
  patches.tokens = answer.grid_height * answer.grid_width / (job.rules.merge * job.rules.merge);
  patches.pixels = answer.pixels;
  patches.size = answer.patch_bytes;
  Result<PixelBuffer> bytes = PixelBuffer::Make(patches.size);
  if (!bytes.ok()) {
    out.outcome = Outcome::kGone;  // what it still sends cannot be read
    out.result = bytes.status();
    return out;
  }
  patches.bytes = std::move(bytes).value();
  if (failed(ReceiveAll(fd, patches.bytes.bytes.get(), patches.size, deadline))) return out;
  out.result = std::move(patches);
  return out;
}

}  // namespace

// One of the children while somebody uses it.
class PictureProcess::Place {
 public:
  explicit Place(PictureProcess& all) : all_(all), which_(all.TakeFree()) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    // What it still sends is no answer to the next picture.
    if (asking && child().fd >= 0) close(std::exchange(child().fd, -1));
    all_.GiveBack(which_);
  }

  ChildProcess& child() { return all_.children_[which_]; }

  bool asking = false;  // a picture is on its way

 private:
  PictureProcess& all_;
  const size_t which_;
};

PictureProcess::PictureProcess(Options options)
    : options_(std::move(options)), children_(std::max(1, options_.processes)) {
  BT_CHECK(!options_.command.empty());
  for (size_t i = 0; i < children_.size(); ++i) free_.push_back(i);
}

PictureProcess::~PictureProcess() {
  for (ChildProcess& child : children_) {
    if (child.fd < 0) continue;
    close(child.fd);
    ReapChild(child.pid, 1);
    TakeLastWords(child);
  }
}

size_t PictureProcess::TakeFree() {
  std::unique_lock lock(mutex_);
  given_back_.wait(lock, [this] { return !free_.empty(); });
  const size_t which = free_.back();
  free_.pop_back();
  return which;
}

void PictureProcess::GiveBack(size_t which) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(which);
  }
  given_back_.notify_one();
}

Status PictureProcess::Start(ChildProcess& child) {
  if (child.fd >= 0) {
    // One that died since its last picture has closed its end.
    char none = 0;
    const ssize_t seen = recv(child.fd, &none, 1, MSG_PEEK | MSG_DONTWAIT);
    if (seen < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    End(child, "between two pictures");
  }
  const Status no_start(
      Code::kUnavailable,
      "the process that decodes pictures does not start; the server's log says why");
  Result<ChildProcess> started = StartChild(options_.command);
  if (!started.ok()) {
    BT_LOG_LIMITED(Error, "The process that decodes pictures does not start: {}",
                   started.status().message());
    return no_start;
  }
  child = started.value();
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  PictureAnswer hello;
  std::string sentence;
  if (ReceiveAll(child.fd, &hello, sizeof(hello), deadline) != Outcome::kDone ||
      ReceiveSentence(child.fd, hello.sentence_bytes, deadline, sentence) != Outcome::kDone) {
    End(child, "at its start");
    return no_start;
  }
  if (!sentence.empty() && !told_unconfined_.exchange(true)) {
    BT_LOG(Warning,
           "The process that decodes pictures could not give up all that it does not need ({}): "
           "allow seccomp in this container, so that a hostile picture can do no harm",
           sentence);
  }
  return {};
}

void PictureProcess::End(ChildProcess& child, const char* why) const {
  close(std::exchange(child.fd, -1));
  const std::string end = ReapChild(child.pid, 0.1);
  const std::string words = TakeLastWords(child);
  BT_LOG_LIMITED(Warning, "The process that decodes pictures ended {}: {}{}{}", why, end,
                 words.empty() ? "" : ": ", words);
}

Status PictureProcess::StartOne() {
  Place place(*this);
  return Start(place.child());
}

Result<PicturePatches> PictureProcess::Prepare(std::string_view file,
                                               const PictureRules& rules,
                                               const PictureLimits& limits) {
  if (file.size() > limits.bytes_max) return DecodePicture(file, limits).status();
  Place place(*this);
  ChildProcess& child = place.child();
  BT_RETURN_IF_ERROR(Start(child));
  const PictureJob job{.bytes = file.size(), .rules = rules, .limits = limits};
  const auto deadline =
      Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(options_.seconds_max * 1000));
  place.asking = true;
  Exchange exchange = Ask(child.fd, file, job, deadline);
  place.asking = false;
  if (exchange.outcome == Outcome::kLate) {
    kill(child.pid, SIGKILL);
    End(child, "because a picture took too long");
    exchange.result = InvalidArgument(fmt::format(
        "the picture takes longer than {} s to decode: make it smaller", options_.seconds_max));
  } else if (exchange.outcome == Outcome::kGone) {
    kill(child.pid, SIGKILL);
    End(child, "during a picture");
    if (exchange.result.status().code() != Code::kResourceExhausted) {
      exchange.result =
          InvalidArgument("the picture broke the process that decodes pictures: save it anew");
    }
  }
  return std::move(exchange.result);
}

}  // namespace baltoro
