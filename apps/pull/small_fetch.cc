#include "pull/small_fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "weights/safetensors.h"

namespace baltoro {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
constexpr int kRetriesOfSilence = 2;
constexpr auto kLook = std::chrono::milliseconds(100);

bool Sleep(double seconds, const std::atomic<bool>* stop) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto stopped = [&] { return stop != nullptr && stop->load(); };
  while (!stopped() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kLook);
  return !stopped();
}

Status FetchOnce(HttpSession& session,
                 const Hub& hub,
                 const SmallFetch& fetch,
                 std::string& out,
                 HttpHead& head_out) {
  out.clear();
  uint64_t skip = 0, seen = 0;
  bool too_long = false;
  const uint64_t wanted = fetch.range.end - fetch.range.begin;  // 0: all
  const HttpEnd end =
      session.Get(fetch.url, fetch.range, [&](const HttpHead& head, std::string_view bytes) {
        // A server that knows no ranges begins at the beginning.
        if (head.status == 200) skip = fetch.range.begin;
        const uint64_t begin = seen < skip ? std::min<uint64_t>(skip - seen, bytes.size()) : 0;
        seen += bytes.size();
        bytes.remove_prefix(begin);
        const bool excess = wanted > 0 && bytes.size() > wanted - out.size();
        if (excess) bytes = bytes.substr(0, wanted - out.size());
        too_long = bytes.size() > fetch.bytes_max - out.size();
        if (too_long) return false;
        out.append(bytes);
        return !excess;  // a "no" to the last byte that was asked for would cost the connection
      });
  head_out = end.head;
  if (too_long) {
    return InvalidArgument(fmt::format("{}: the answer of {} is longer than {} bytes", fetch.what,
                                       end.head.host, fetch.bytes_max));
  }
  const bool good = end.head.status >= 200 && end.head.status < 300;
  if (good && wanted > 0 && out.size() == wanted) return {};  // whatever came after it
  if (!end.status.ok()) return Status(end.status.code(), fetch.what + ": " + end.status.message());
  if (!good) return Explain(hub, fetch.what, end);
  if (wanted > 0) {
    return Status(Code::kUnavailable, fmt::format("{}: {} ended {} bytes before the end",
                                                  fetch.what, end.head.host, wanted - out.size()));
  }
  return {};
}

}  // namespace

Result<std::string> FetchSmall(HttpSession& session,
                               const Hub& hub,
                               const SmallFetch& fetch,
                               const RetryRules& rules) {
  std::string out;
  HttpHead head;
  for (int failures = 1;; ++failures) {
    const Status status = FetchOnce(session, hub, fetch, out, head);
    if (status.ok()) return out;
    if (status.code() != Code::kUnavailable) return status;
    if (rules.stop != nullptr && rules.stop->load()) return Status(Code::kUnavailable, "stopped");
    const bool silent = head.status == 0;  // nobody answered: a wrong name, or no way there
    const int retries = silent ? std::min(rules.retries, kRetriesOfSilence) : rules.retries;
    if (failures > retries) {
      return Status(status.code(),
                    fmt::format("{}; given up after {} attempts{}", status.message(), failures,
                                silent ? ". Is there a proxy (https_proxy), or a mirror "
                                         "(HF_ENDPOINT, --source modelscope)?"
                                       : " (--retries)"));
    }
    const double wait = WaitBefore(failures, rules.wait_s, head);
    if (rules.tell) {
      rules.tell(fmt::format("{}; attempt {} of {} in {:.1f} s", status.message(), failures + 1,
                             retries + 1, wait));
    }
    if (!Sleep(wait, rules.stop)) return Status(Code::kUnavailable, "stopped");
  }
}

Result<std::string> FetchHeader(HttpSession& session,
                                const Hub& hub,
                                const std::string& commit,
                                const RepoFile& file,
                                const RetryRules& rules) {
  SmallFetch fetch{.url = hub.FileUrl(file.path, commit),
                   .what = file.path,
                   .bytes_max = kLengthBytes,
                   .range = {0, kLengthBytes}};
  const auto all = static_cast<uint64_t>(file.bytes);
  if (all < kLengthBytes) return InvalidArgument(file.path + ": is no safetensors file");
  BT_ASSIGN_OR_RETURN(std::string out, FetchSmall(session, hub, fetch, rules));
  uint64_t length = 0;
  std::memcpy(&length, out.data(), sizeof length);
  if (length > kHeaderBytesMax || length > all - kLengthBytes) {
    return InvalidArgument(
        fmt::format("{}: its header claims {} bytes: no safetensors file", file.path, length));
  }
  if (length > 0) {
    fetch.bytes_max = length;
    fetch.range = {kLengthBytes, kLengthBytes + length};
    BT_ASSIGN_OR_RETURN(const std::string json, FetchSmall(session, hub, fetch, rules));
    out += json;
  }
  const std::string_view json = std::string_view(out).substr(kLengthBytes);
  const auto header = ParseSafetensorsHeader(json, all - kLengthBytes - length);
  if (!header.ok()) return InvalidArgument(file.path + ": " + header.status().message());
  return out;
}

}  // namespace baltoro
