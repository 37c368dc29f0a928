#include "base/profile.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

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

struct Recording {
  std::mutex mutex;
  std::atomic<bool> on = false;
  // Below: under the mutex. A deque, which grows without moving what it has.
  std::deque<Event> events;
  uint64_t left_out = 0;
  int64_t begin_ns = 0;
  std::map<int64_t, const char*> rows;  // also of threads that are gone
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
  if (!recording.on || event.at_ns < recording.begin_ns) return;  // it began in another one
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
        file_(gzopen(part_.c_str(), gzip ? "wbe6" : "wbeT")) {}
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() {
    if (file_ != nullptr) gzclose(file_);
    if (!done_) unlink(part_.c_str());
  }

  void Write(const std::string& text) {
    const auto size = static_cast<unsigned>(text.size());
    if (!text.empty() && ok_) ok_ = gzwrite(file_, text.data(), size) > 0;
  }
  bool open() const { return file_ != nullptr; }
  Status Close() {
    ok_ = gzclose(std::exchange(file_, nullptr)) == Z_OK && ok_;
    done_ = ok_ && rename(part_.c_str(), path_.c_str()) == 0;
    if (done_) return {};
    return Status(Code::kUnavailable, fmt::format("{}: {}", path_, std::strerror(errno)));
  }

 private:
  const std::string path_, part_;
  gzFile file_;
  bool ok_ = true, done_ = false;
};

double Microseconds(int64_t ns) {
  return static_cast<double>(ns) / 1000;
}

void AppendArgs(const ProfileArgs& args, std::string& out) {
  if (args[0].key == nullptr) return;
  out += R"(,"args":{)";
  for (size_t i = 0; i < args.size() && args[i].key != nullptr; ++i) {
    fmt::format_to(std::back_inserter(out), R"({}"{}":{})", i == 0 ? "" : ",", args[i].key,
                   args[i].value);
  }
  out += "}";
}

void Append(const Event& event, int64_t begin_ns, std::string& out) {
  const double at = Microseconds(event.at_ns - begin_ns);
  if (event.phase == 'X') {
    fmt::format_to(std::back_inserter(out),
                   R"(,
{{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"cat":"engine","name":"{}")",
                   getpid(), event.row, at, Microseconds(event.duration_ns), event.name);
  } else {
    fmt::format_to(std::back_inserter(out),
                   R"(,
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
  fmt::format_to(std::back_inserter(out),
                 R"(,
{{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":"{}"}}}})",
                 getpid(), row, what, name);
}

}  // namespace

int64_t ProfileNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Profiling() {
  return TheRecording().on.load(std::memory_order_relaxed);
}

Status StartProfile() {
  Recording& recording = TheRecording();
  const std::lock_guard lock(recording.mutex);
  if (recording.on) {
    return InvalidArgument("a profile is being recorded; POST /stop_profile ends it");
  }
  recording.events.clear();
  recording.left_out = 0;
  recording.begin_ns = ProfileNow();
  recording.on = true;
  return {};
}

Result<ProfileSummary> StopProfile(const std::string& dir, bool gzip) {
  Recording& recording = TheRecording();
  std::deque<Event> events;
  std::map<int64_t, const char*> rows;
  ProfileSummary summary;
  int64_t begin_ns = 0;
  {
    const std::lock_guard lock(recording.mutex);
    if (!recording.on) return InvalidArgument(kNoProfile);
    recording.on = false;
    events.swap(recording.events);
    rows = recording.rows;
    summary.left_out = recording.left_out;
    begin_ns = recording.begin_ns;
  }
  for (Event& end : Ends(events, ProfileNow())) events.push_back(end);
  summary.events = events.size();

  std::error_code error;
  std::filesystem::create_directories(dir, error);
  const auto unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  summary.path =
      fmt::format("{}/baltoro-{}-{}.trace.json{}", dir, getpid(), unix_ms, gzip ? ".gz" : "");
  TraceFile file(summary.path, gzip);
  if (!file.open()) {
    return Status(Code::kUnavailable, fmt::format("{}: {}", summary.path, std::strerror(errno)));
  }
  constexpr size_t kPieceBytes = 1 << 20;
  std::string out = fmt::format(
      R"({{"displayTimeUnit":"ms","otherData":{{"events_left_out":{}}},"traceEvents":[
{{"ph":"M","pid":{},"name":"process_name","args":{{"name":"baltoro engine"}}}})",
      summary.left_out, getpid());
  for (const auto& [row, name] : rows) {
    AppendName("thread_name", row, name, out);
  }
  for (const Event& event : events) {
    Append(event, begin_ns, out);
    if (out.size() < kPieceBytes) continue;
    file.Write(out);
    out.clear();
  }
  file.Write(out + "\n]}\n");
  BT_RETURN_IF_ERROR(file.Close());
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
