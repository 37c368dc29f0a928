#include "traces/exporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "traces/otlp_json.h"

namespace baltoro {
namespace {

constexpr size_t kQueueMax = 2048;  // requests
constexpr size_t kBatchMax = 256;   // requests in one transfer
constexpr Seconds kDelay = 0.5;     // for which a batch may wait to be filled
constexpr Seconds kTimeout = 10;    // of a transfer
constexpr int kAttempts = 5;
constexpr Seconds kPauseMax = 30;  // before another attempt, where the collector asks for more
constexpr Seconds kTellEvery = 60;
constexpr size_t kAnswerBytesMax = 64 << 10;
constexpr size_t kShownBytes = 200;  // of what a collector says

// As the protocol lists them.
bool IsWorthAnotherAttempt(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

std::string Shown(const WebAnswer& answer) {
  std::string out = fmt::format("the answer is {}", answer.status);
  if (!answer.body.empty()) out += ": " + answer.body.substr(0, kShownBytes);
  if (answer.status == 404) out += "; is the path of the URL right? It is mostly /v1/traces";
  return out;
}

std::chrono::duration<double> For(Seconds seconds) {
  return std::chrono::duration<double>(seconds);
}

}  // namespace

Result<std::unique_ptr<TraceExporter>> TraceExporter::Start(TraceOptions options) {
  auto abort = std::make_shared<std::atomic<bool>>(false);
  BT_ASSIGN_OR_RETURN(WebClient client,
                      WebClient::Create({.url = options.endpoint,
                                         .ca_file = options.ca_file,
                                         .timeout = kTimeout,
                                         .user_agent = "baltoro/" + options.version,
                                         .headers = options.headers,
                                         .body_bytes_max = kAnswerBytesMax,
                                         .stop = abort.get()}));
  std::unique_ptr<TraceExporter> exporter(
      new TraceExporter(std::move(options), std::move(abort), std::move(client)));
  exporter->thread_ = std::thread([raw = exporter.get()] { raw->Run(); });
  return exporter;
}

TraceExporter::TraceExporter(TraceOptions options,
                             std::shared_ptr<std::atomic<bool>> abort,
                             WebClient client)
    : options_(std::move(options)), abort_(std::move(abort)), client_(std::move(client)) {}

TraceExporter::~TraceExporter() {
  Flush();
}

void TraceExporter::Add(RequestSpan span) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || queue_.size() == kQueueMax) {
    ++counts_.queue_full;
    return;
  }
  queue_.push_back(std::move(span));
  if (queue_.size() == 1 || queue_.size() == kBatchMax) changed_.notify_all();
}

SpanCounts TraceExporter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void TraceExporter::Flush() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, For(kFlushSeconds), [this] { return ended_; });
  }
  *abort_ = true;
  thread_.join();
}

void TraceExporter::Run() {
  for (;;) {
    std::vector<RequestSpan> batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      changed_.wait_for(lock, For(kDelay),
                        [this] { return stopping_ || queue_.size() >= kBatchMax; });
      if (queue_.empty()) break;
      const auto taken = static_cast<std::ptrdiff_t>(std::min(queue_.size(), kBatchMax));
      batch.assign(std::make_move_iterator(queue_.begin()),
                   std::make_move_iterator(queue_.begin() + taken));
      queue_.erase(queue_.begin(), queue_.begin() + taken);
    }
    Deliver(batch);
  }
  Tell("the server stops", true);
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void TraceExporter::Deliver(const std::vector<RequestSpan>& batch) {
  const std::string body = OtlpJson(batch, options_);
  for (int attempt = 1;; ++attempt) {
    if (*abort_) return CountUndelivered(batch.size(), "the server stops");
    const Result<WebAnswer> answer = client_.Send("", body, {});
    const bool came = answer.ok();
    if (came && answer.value().status / 100 == 2) {
      return CountRefused(answer.value(), batch.size());
    }
    const std::string why = came ? Shown(answer.value()) : answer.status().message();
    const bool again = came ? IsWorthAnotherAttempt(answer.value().status)
                            : answer.status().code() == Code::kUnavailable;
    if (!again || attempt == kAttempts) return CountUndelivered(batch.size(), why);
    const Seconds asked = came ? answer.value().retry_after : -1;
    const Seconds pause = std::clamp(asked, std::exp2(attempt - 1), kPauseMax);
    std::unique_lock lock(mutex_);
    // Who stops does not wait for a collector that is away: what it has tried once is over.
    if (changed_.wait_for(lock, For(pause), [this] { return stopping_; })) {
      lock.unlock();
      return CountUndelivered(batch.size(), why);
    }
  }
}

// A collector may take a part of a batch, and says so in its answer.
void TraceExporter::CountRefused(const WebAnswer& answer, size_t spans) {
  size_t refused = 0;
  std::string why;
  if (const Result<Json> body = ParseJson(answer.body); body.ok() && body.value().is_object()) {
    const Json part = body.value().value("partialSuccess", Json());
    const Json count = part.is_object() ? part.value("rejectedSpans", Json()) : Json();
    if (count.is_number_unsigned()) refused = count.get<size_t>();
    if (count.is_string()) {  // as 64-bit integers are written
      const auto& digits = count.get_ref<const std::string&>();
      std::from_chars(digits.data(), digits.data() + digits.size(), refused);
    }
    if (refused > 0 && part.contains("errorMessage") && part["errorMessage"].is_string()) {
      why = part["errorMessage"].get<std::string>().substr(0, kShownBytes);
    }
  }
  // It counts spans, of which a request has several.
  refused = std::min(refused, spans);
  {
    const std::lock_guard lock(mutex_);
    counts_.exported += spans - refused;
  }
  if (refused > 0) return CountUndelivered(refused, "the collector refused a part: " + why);
  Tell("the queue was full", false);
}

void TraceExporter::CountUndelivered(size_t spans, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    counts_.undelivered += spans;
  }
  Tell(why, false);
}

// A line a minute at most, and one at the end.
void TraceExporter::Tell(const std::string& why, bool last) {
  const SpanCounts now = counts();
  const uint64_t drops = now.queue_full + now.undelivered;
  if (drops == told_) return;
  if (!last && told_at_ > 0 && clock_.Now() - told_at_ < kTellEvery) return;
  BT_LOG(Warning, "Traces: {} requests have no span at {}: {}", drops - told_, options_.endpoint,
         why);
  told_at_ = clock_.Now();
  told_ = drops;
}

}  // namespace baltoro
