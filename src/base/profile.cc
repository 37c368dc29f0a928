#include "base/profile.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/append.h"
#include "base/log.h"

namespace baltoro {
namespace {

constexpr int kRowBase = 1'000'000'000;  // rows that are no thread; ids of threads are smaller

struct Event {
  const char* name = nullptr;
  char phase = 'X';  // X: a span; b, e: a life's begin and end
  int64_t row = 0;   // of a span
  int64_t at_ns = 0, duration_ns = 0;
  uint64_t id = 0;  // of a life
  ProfileArgs args;
};

// A recording that was stopped.
struct Ended {
  std::deque<Event> events;  // a deque grows without moving what it has
  std::map<int64_t, const char*> rows;
  uint64_t left_out = 0;
  int64_t begin_ns = 0;
};

struct Recording {
  std::mutex mutex;
  std::atomic<uint64_t> number = 0;  // 0: none is on
  // Below: under the mutex.
  uint64_t last = 0;  // number
  std::deque<Event> events;
  uint64_t left_out = 0;
  int64_t begin_ns = 0;
  std::map<int64_t, const char*> rows;  // also of threads that are gone
  std::optional<Ended> unwritten;       // its file could not be written
};

Recording& TheRecording() {
  static auto* const recording = new Recording;  // threads may outlive static objects
  return *recording;
}

int64_t ThreadRow() {
  static thread_local const int64_t row = gettid();
  return row;
}

void Add(const Event& event) {
  Recording& recording = TheRecording();
  const std::lock_guard lock(recording.mutex);
  if (recording.number == 0 || event.at_ns < recording.begin_ns) return;  // it began in another one
  if (recording.events.size() == kProfileEventsMax) {
    if (recording.left_out++ == 0) {
      BT_LOG(Warning, "The profile is full: of {} events on, nothing more is recorded",
             kProfileEventsMax);
    }
    return;
  }
  recording.events.push_back(event);
}

// A gzip stream, or plain bytes, to a file that nobody sees before it is whole.
class TraceFile {
 public:
  TraceFile(std::string path, bool gzip)
      : path_(std::move(path)),
        part_(path_ + ".part"),
        file_(gzopen(part_.c_str(), gzip ? "wbxe6" : "wbxeT")) {}
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() {
    if (file_ != nullptr) gzclose(file_);
    if (opened_ && !done_) unlink(part_.c_str());
  }

  void Write(const std::string& text) {
    const auto size = static_cast<unsigned>(text.size());
    if (text.empty() || error_ != 0) return;
    errno = 0;
    if (gzwrite(file_, text.data(), size) <= 0) Failed();
  }
  bool open() const { return file_ != nullptr; }
  Status Close() {
    errno = 0;
    if (gzclose(std::exchange(file_, nullptr)) != Z_OK && error_ == 0) Failed();
    if (error_ == 0 && rename(part_.c_str(), path_.c_str()) != 0) Failed();
    done_ = error_ == 0;
    if (done_) return {};
    return Status(Code::kUnavailable, fmt::format("{}: {}", path_, std::strerror(error_)));
  }

 private:
  const std::string path_, part_;
  gzFile file_;
  int error_ = 0;  // the first
  const bool opened_ = file_ != nullptr;
  bool done_ = false;

  void Failed() { error_ = errno != 0 ? errno : EIO; }
};

double Microseconds(int64_t ns) {
  return static_cast<double>(ns) / 1000;
}

void AppendArgs(const ProfileArgs& args, std::string& out) {
  if (args[0].key == nullptr) return;
  out += R"(,"args":{)";
  for (size_t i = 0; i < args.size() && args[i].key != nullptr; ++i) {
    AppendFormatted(out, R"({}"{}":{})", i == 0 ? "" : ",", args[i].key, args[i].value);
  }
  out += "}";
}

void Append(const Event& event, int64_t begin_ns, std::string& out) {
  const double at = Microseconds(event.at_ns - begin_ns);
  if (event.phase == 'X') {
    AppendFormatted(out, R"(,
{{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"cat":"engine","name":"{}")",
                    getpid(), event.row, at, Microseconds(event.duration_ns), event.name);
  } else {
    AppendFormatted(out, R"(,
{{"ph":"{}","pid":{},"tid":{},"ts":{:.3f},"cat":"request","id":"{:#x}","name":"{}")",
                    event.phase, getpid(), event.row, at, event.id, event.name);
  }
  AppendArgs(event.args, out);
  out += "}";
}

// Lives that have not ended, innermost first, and their last moment.
std::vector<Event> Ends(const std::deque<Event>& events, int64_t end_ns) {
  std::map<uint64_t, std::vector<const Event*>> open;
  for (const Event& event : events) {
    if (event.phase == 'b') open[event.id].push_back(&event);
    if (event.phase == 'e' && !open[event.id].empty()) open[event.id].pop_back();
  }
  std::vector<Event> out;
  for (const auto& [id, begins] : open) {
    for (auto begin = begins.rbegin(); begin != begins.rend(); ++begin) {
      out.push_back({.name = (*begin)->name,
                     .phase = 'e',
                     .row = (*begin)->row,
                     .at_ns = end_ns,
                     .id = id,
                     .args = {}});
    }
  }
  return out;
}

void AppendName(const char* what, int64_t row, const std::string& name, std::string& out) {
  AppendFormatted(out, R"(,
{{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":"{}"}}}})",
                  getpid(), row, what, name);
}

}  // namespace

int64_t ProfileNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t ProfileNumber() {
  return TheRecording().number.load(std::memory_order_relaxed);
}

Status StartProfile() {
  Recording& recording = TheRecording();
  const std::lock_guard lock(recording.mutex);
  if (recording.number != 0) {
    return InvalidArgument("a profile is being recorded; POST /stop_profile ends it");
  }
  if (recording.unwritten) {
    BT_LOG(Warning, "The profile that could not be written is given up for a new one");
  }
  recording.unwritten.reset();
  recording.events.clear();
  recording.left_out = 0;
  recording.begin_ns = ProfileNow();
  recording.number = ++recording.last;
  return {};
}

Status ProbeProfileFolder(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return Status(Code::kUnavailable, fmt::format("{}: {}", dir, error.message()));
  std::string probe = dir + "/.baltoro-probe-XXXXXX";
  const int fd = mkostemp(probe.data(), O_CLOEXEC);
  if (fd < 0) {
    return Status(Code::kUnavailable,
                  fmt::format("no file can be made in {}: {}", dir, std::strerror(errno)));
  }
  close(fd);
  unlink(probe.c_str());
  return {};
}

namespace {

Result<ProfileSummary> WriteRecording(const Ended& ended, const std::string& dir, bool gzip) {
  static std::atomic<uint64_t> files{0};
  ProfileSummary summary;
  summary.left_out = ended.left_out;
  summary.events = ended.events.size();
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return Status(Code::kUnavailable, fmt::format("{}: {}", dir, error.message()));
  const auto unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  // Two of one millisecond have different numbers.
  summary.path = fmt::format("{}/baltoro-{}-{}-{}.trace.json{}", dir, getpid(), unix_ms, ++files,
                             gzip ? ".gz" : "");
  TraceFile file(summary.path, gzip);
  if (!file.open()) {
    return Status(Code::kUnavailable, fmt::format("{}: {}", summary.path, std::strerror(errno)));
  }
  constexpr size_t kPieceBytes = 1 << 20;
  std::string out = fmt::format(
      R"({{"displayTimeUnit":"ms","otherData":{{"events_left_out":{}}},"traceEvents":[
{{"ph":"M","pid":{},"name":"process_name","args":{{"name":"baltoro engine"}}}})",
      summary.left_out, getpid());
  for (const auto& [row, name] : ended.rows) {
    AppendName("thread_name", row, name, out);
  }
  for (const Event& event : ended.events) {
    Append(event, ended.begin_ns, out);
    if (out.size() < kPieceBytes) continue;
    file.Write(out);
    out.clear();
  }
  file.Write(out + "\n]}\n");
  BT_RETURN_IF_ERROR(file.Close());
  return summary;
}

}  // namespace

Result<ProfileSummary> StopProfile(const std::string& dir, bool gzip) {
  Recording& recording = TheRecording();
  Ended ended;
  {
    const std::lock_guard lock(recording.mutex);
    if (recording.number != 0) {
      recording.number = 0;
      ended.events.swap(recording.events);
      ended.rows = recording.rows;
      ended.left_out = recording.left_out;
      ended.begin_ns = recording.begin_ns;
      for (Event& end : Ends(ended.events, ProfileNow())) ended.events.push_back(end);
    } else if (recording.unwritten) {
      ended = *std::exchange(recording.unwritten, std::nullopt);
    } else {
      return InvalidArgument(kNoProfile);
    }
  }
  Result<ProfileSummary> summary = WriteRecording(ended, dir, gzip);
  if (!summary.ok()) {
    BT_LOG(Error, "The profile could not be written, POST /stop_profile tries again: {}",
           summary.status().message());
    const std::lock_guard lock(recording.mutex);
    recording.unwritten = std::move(ended);
  }
  return summary;
}

void NameProfileThread(const char* name) {
  Recording& recording = TheRecording();
  const std::lock_guard lock(recording.mutex);
  recording.rows[ThreadRow()] = name;
}

ProfileSpan::~ProfileSpan() {
  if (begin_ == 0 || !Profiling()) return;
  Add({.name = name_,
       .phase = 'X',
       .row = ThreadRow(),
       .at_ns = begin_,
       .duration_ns = ProfileNow() - begin_,
       .args = args_});
}

void AddProfileSpan(
    const char* row, const char* name, int64_t begin_ns, int64_t end_ns, const ProfileArgs& args) {
  if (!Profiling()) return;
  Recording& recording = TheRecording();
  int64_t id = kRowBase;
  {
    const std::lock_guard lock(recording.mutex);
    while (recording.rows.contains(id) && recording.rows[id] != row) ++id;
    recording.rows[id] = row;
    begin_ns = std::max(begin_ns, recording.begin_ns);
  }
  Add({.name = name,
       .phase = 'X',
       .row = id,
       .at_ns = begin_ns,
       .duration_ns = std::max<int64_t>(0, end_ns - begin_ns),
       .args = args});
}

void BeginProfileLife(const char* name, uint64_t id, const ProfileArgs& args) {
  if (!Profiling()) return;
  Add({.name = name,
       .phase = 'b',
       .row = ThreadRow(),
       .at_ns = ProfileNow(),
       .id = id,
       .args = args});
}

void EndProfileLife(const char* name, uint64_t id, const ProfileArgs& args) {
  if (!Profiling()) return;
  Add({.name = name,
       .phase = 'e',
       .row = ThreadRow(),
       .at_ns = ProfileNow(),
       .id = id,
       .args = args});
}

}  // namespace baltoro
