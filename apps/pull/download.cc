#include "pull/download.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "pull/checksum.h"
#include "pull/content_range.h"

namespace baltoro {
namespace {

constexpr int kBeginningsMax = 3;              // of one file, after the first
constexpr int64_t kBytesOfProgress = 1 << 20;  // an attempt that brought as many has not failed
constexpr double kSecondsBetweenRecords = 1;
constexpr size_t kRemarksMax = 50;
constexpr auto kLook = std::chrono::milliseconds(200);

double Now() {
  return MonotonicClock().Now();
}

}  // namespace

// One request for the rest of a part.
struct Downloader::Attempt {
  int64_t begin = 0, end = 0;  // in the file
  bool ranged = false;
  bool checked = false;  // the head was looked at
  int64_t got = 0;
  bool anew = false;  // the file must begin anew, for `problem`
  bool without_ranges = false;
  Status problem;  // what ends the download, or why anew
  Status full;     // of writing
};

Downloader::Downloader(const Hub& hub,
                       std::string commit,
                       FileStore& store,
                       std::vector<RepoFile> files,
                       DownloadOptions options,
                       const std::atomic<bool>& stop)
    : hub_(hub),
      commit_(std::move(commit)),
      store_(store),
      files_(std::move(files)),
      options_(std::move(options)),
      stop_(stop) {
  options_.http.stop = &halt_;
  state_.files_all = files_.size();
  for (const RepoFile& file : files_) state_.bytes_all += file.bytes;
}

Status Downloader::Run(const std::function<void(const DownloadState&)>& show) {
  std::vector<std::jthread> workers;
  running_ = files_.empty() ? 0 : options_.workers;
  for (int i = running_; i > 0; --i) workers.emplace_back([this] { Work(); });
  std::unique_lock lock(mutex_);
  while (running_ > 0) {
    changed_.wait_for(lock, kLook);
    if (stop_.load()) {
      halt_ = true;
      changed_.notify_all();
    }
    const DownloadState state = state_;
    lock.unlock();
    show(state);
    lock.lock();
  }
  for (Active& active : active_) {
    const Status saved = active.partial.Save(active.parts, active.etag);
    if (!saved.ok() && failure_.ok()) failure_ = saved;
  }
  if (!failure_.ok()) return failure_;
  if (stop_.load()) return Status(Code::kUnavailable, "stopped");
  BT_CHECK(active_.empty() && next_ == files_.size());
  return {};
}

std::vector<std::string> Downloader::TakeRemarks() {
  const std::lock_guard lock(mutex_);
  return std::move(remarks_);
}

void Downloader::Work() {
  Result<HttpSession> session = HttpSession::Create(options_.http);
  if (!session.ok()) Fail(session.status());
  while (session.ok() && !stopping()) {
    const std::optional<Claim> claim = Take();
    if (!claim) break;
    const Status fetched = Fetch(session.value(), *claim);
    if (!fetched.ok()) Fail(fetched);
    const Status released = Release(*claim);
    if (!released.ok()) Fail(released);
  }
  const std::lock_guard lock(mutex_);
  --running_;
  changed_.notify_all();
}

std::optional<Downloader::Claim> Downloader::Take() {
  std::unique_lock lock(mutex_);
  while (!stopping()) {
    if (std::optional<Claim> claim = TakePart()) return claim;
    if (next_ < files_.size()) {
      const Status opened = OpenNext();
      if (opened.ok()) continue;
      lock.unlock();
      Fail(opened);
      return std::nullopt;
    }
    // A file that others are at may have to begin anew.
    if (active_.empty()) return std::nullopt;
    changed_.wait(lock);
  }
  return std::nullopt;
}

std::optional<Downloader::Claim> Downloader::TakePart() {
  for (auto file = active_.begin(); file != active_.end(); ++file) {
    if (file->closing || file->waiting) continue;
    for (size_t i = 0; i < file->parts.size(); ++i) {
      const FilePart& part = file->parts[i];
      const bool empty_file = file->file.bytes == 0 && file->workers == 0;
      if (file->taken[i] || (part.done == part.end - part.begin && !empty_file)) continue;
      file->taken[i] = true;
      ++file->workers;
      return Claim{file, i, file->generation};
    }
    // All parts were there when the program ended before the sum was computed.
    const bool all_there = std::ranges::all_of(
        file->parts, [](const FilePart& part) { return part.done == part.end - part.begin; });
    if (all_there && file->workers == 0) {
      ++file->workers;
      return Claim{file, file->parts.size(), file->generation};
    }
  }
  return std::nullopt;
}

Status Downloader::OpenNext() {
  const RepoFile& file = files_[next_];
  BT_ASSIGN_OR_RETURN(PartialFile partial,
                      PartialFile::Open(store_.PartialPath(file), file.bytes, options_.part_bytes));
  ++next_;
  Active active{.file = file, .partial = std::move(partial), .parts = {}, .taken = {}, .etag = {}};
  active.parts = active.partial.found_parts();
  active.etag = active.partial.found_etag();
  active.taken.assign(active.parts.size(), false);
  for (const FilePart& part : active.parts) {
    state_.bytes += part.done;
    state_.bytes_before += part.done;
  }
  active_.push_back(std::move(active));
  return {};
}

Status Downloader::Fetch(HttpSession& session, const Claim& claim) {
  int failures = 0;
  Status why;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping() || claim.generation != claim.file->generation) return {};
      if (claim.part == claim.file->parts.size()) return {};
      const FilePart& part = claim.file->parts[claim.part];
      if (part.done == part.end - part.begin) return {};
    }
    switch (FetchOnce(session, claim, failures, why)) {
      case Turn::kAgain:
        continue;
      case Turn::kDone:
        return {};
      case Turn::kFailed:
        return why;
    }
  }
}

Downloader::Turn Downloader::FetchOnce(HttpSession& session,
                                       const Claim& claim,
                                       int& failures,
                                       Status& why) {
  Attempt attempt;
  std::string path;
  if (!Rest(claim, PauseEnd())) return Turn::kDone;
  {
    const std::lock_guard lock(mutex_);
    Active& active = *claim.file;
    FilePart& part = active.parts[claim.part];
    if (!active.ranged) {
      state_.bytes -= part.done;
      part.done = 0;
    }
    path = active.file.path;
    attempt.begin = part.begin + part.done;
    attempt.end = part.end;
    attempt.ranged = active.ranged && (attempt.begin > 0 || attempt.end < active.file.bytes);
  }
  const HttpRange range = attempt.ranged ? HttpRange{static_cast<uint64_t>(attempt.begin),
                                                     static_cast<uint64_t>(attempt.end)}
                                         : HttpRange{};
  const HttpEnd end = session.Get(hub_.FileUrl(path, commit_), range,
                                  [&](const HttpHead& head, std::string_view bytes) {
                                    return Accept(claim, attempt, head, bytes);
                                  });
  if (stopping()) return Turn::kDone;
  if (!attempt.full.ok()) {
    why = attempt.full;
    return Turn::kFailed;
  }
  // An answer without a body has not been looked at.
  const bool taken = end.head.status >= 200 && end.head.status < 300;
  if (end.head.status == 416) {
    attempt.anew = true;
    attempt.problem = InvalidArgument("the server has no such bytes");
  }
  if (attempt.anew) {
    why = BeginAnew(claim, attempt.problem.message(), !attempt.without_ranges);
    return why.ok() ? Turn::kDone : Turn::kFailed;
  }
  if (attempt.begin + attempt.got == attempt.end) return Turn::kDone;
  if (!attempt.problem.ok()) {
    why = attempt.problem;
  } else if (!end.status.ok()) {
    why = Status(end.status.code(), path + ": " + end.status.message());
  } else if (end.refused) {
    return Turn::kDone;  // somebody else begins it anew
  } else if (!taken) {
    why = Explain(hub_, path, end);
  } else {
    why = Status(Code::kUnavailable,
                 fmt::format("{}: {} ended {} bytes before the end", path, end.head.host,
                             attempt.end - attempt.begin - attempt.got));
  }
  if (why.code() != Code::kUnavailable) return Turn::kFailed;
  if (attempt.ranged && attempt.got >= kBytesOfProgress) failures = 0;
  if (++failures > options_.retries) {
    why = Status(why.code(),
                 fmt::format("{}; given up after {} attempts (--retries). What came is kept: the "
                             "same command goes on there",
                             why.message(), failures));
    return Turn::kFailed;
  }
  const double wait = WaitBefore(failures, options_.retry_wait_s, end.head);
  if (end.head.retry_after_s > 0) AskForPause(wait);
  Remark(fmt::format("{}; attempt {} of {} in {:.1f} s", why.message(), failures + 1,
                     options_.retries + 1, wait));
  return Rest(claim, Now() + wait) ? Turn::kAgain : Turn::kDone;
}

bool Downloader::Accept(const Claim& claim,
                        Attempt& attempt,
                        const HttpHead& head,
                        std::string_view bytes) {
  std::unique_lock lock(mutex_);
  Active& active = *claim.file;
  if (claim.generation != active.generation) return false;
  if (!attempt.checked) {
    attempt.checked = true;
    const HeadCheck check = CheckHead(head, {.path = active.file.path,
                                             .bytes = active.file.bytes,
                                             .etag = active.etag,
                                             .ranged = attempt.ranged,
                                             .begin = attempt.begin});
    attempt.problem = check.problem;
    attempt.anew = check.anew;
    attempt.without_ranges = attempt.anew && attempt.ranged && head.status == 200;
    if (!attempt.problem.ok()) return false;
    if (active.etag.empty()) active.etag = EtagOf(head);
  }
  lock.unlock();
  // Of a server that sends more than was asked for, or than the listing says.
  const auto room = static_cast<size_t>(attempt.end - attempt.begin - attempt.got);
  const std::string_view wanted = bytes.substr(0, room);
  attempt.full = active.partial.Write(attempt.begin + attempt.got, wanted);
  if (!attempt.full.ok()) return false;
  lock.lock();
  if (claim.generation != active.generation) return false;
  const auto count = static_cast<int64_t>(wanted.size());
  attempt.got += count;
  active.parts[claim.part].done += count;
  state_.bytes += count;
  if (const double now = Now(); now - active.saved_at >= kSecondsBetweenRecords) {
    active.saved_at = now;
    attempt.full = active.partial.Save(active.parts, active.etag);
    if (!attempt.full.ok()) return false;
  }
  return wanted.size() == bytes.size();
}

Status Downloader::BeginAnew(const Claim& claim, const std::string& why, bool ranged) {
  std::unique_lock lock(mutex_);
  Active& active = *claim.file;
  if (claim.generation != active.generation) return {};
  if (++active.generation > kBeginningsMax) {
    return InvalidArgument(fmt::format("{}: {}; given up after {} beginnings", active.file.path,
                                       why, active.generation));
  }
  // The others leave as soon as the next bytes come to them, or at once where they only wait.
  active.waiting = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return active.workers == 1 || stopping(); });
  active.waiting = false;
  if (active.workers > 1) return {};
  for (const FilePart& part : active.parts) state_.bytes -= part.done;
  active.ranged = active.ranged && ranged;
  active.parts =
      CutIntoParts(active.file.bytes, active.ranged ? options_.part_bytes : active.file.bytes + 1);
  active.taken.assign(active.parts.size(), false);
  active.etag.clear();
  if (remarks_.size() < kRemarksMax) {
    remarks_.push_back(
        fmt::format("{}: {}; it is fetched from its beginning", active.file.path, why));
  }
  return active.partial.Save(active.parts, active.etag);
}

Status Downloader::Release(const Claim& claim) {
  std::unique_lock lock(mutex_);
  Active& active = *claim.file;
  --active.workers;
  if (claim.generation == active.generation && claim.part < active.taken.size()) {
    active.taken[claim.part] = false;
  }
  changed_.notify_all();
  const bool whole = std::ranges::all_of(
      active.parts, [](const FilePart& part) { return part.done == part.end - part.begin; });
  if (!whole || active.workers > 0 || active.closing || stopping()) return {};
  active.closing = true;
  ++state_.checking;
  lock.unlock();
  const Status closed = Close(active);
  lock.lock();
  --state_.checking;
  if (closed.ok()) {
    ++state_.files;
    active_.erase(claim.file);
  } else if (closed.code() == Code::kInvalidArgument && active.generation < 1) {
    // Once anew: what was left by an earlier attempt may have been damaged.
    ++active.generation;
    for (const FilePart& part : active.parts) state_.bytes -= part.done;
    active.parts = CutIntoParts(active.file.bytes,
                                active.ranged ? options_.part_bytes : active.file.bytes + 1);
    active.taken.assign(active.parts.size(), false);
    active.etag.clear();
    active.closing = false;
    remarks_.push_back(closed.message() + "; it is fetched once more");
    changed_.notify_all();
    return active.partial.Save(active.parts, active.etag);
  } else {
    if (closed.code() == Code::kInvalidArgument) {
      active.partial.Discard();
      active_.erase(claim.file);
    }
    changed_.notify_all();
    return closed;
  }
  changed_.notify_all();
  return {};
}

// Checks the sum and gives the file its name.
Status Downloader::Close(Active& active) {
  BT_RETURN_IF_ERROR(active.partial.Save(active.parts, active.etag));
  BT_ASSIGN_OR_RETURN(const std::string sum, SumOf(active.partial.path(), active.file, &halt_));
  if (sum != active.file.sum()) {
    return InvalidArgument(
        fmt::format("{}: what came has the {} {}, the listing says {}", active.file.path,
                    active.file.sha256.empty() ? "git sum" : "sha256", sum, active.file.sum()));
  }
  return store_.Place(active.file, &active.partial);
}

bool Downloader::Rest(const Claim& claim, double until) {
  std::unique_lock lock(mutex_);
  const auto goes_on = [&] { return !stopping() && claim.generation == claim.file->generation; };
  for (double now = Now(); goes_on() && now < until; now = Now()) {
    changed_.wait_for(lock, std::chrono::duration<double>(until - now));
  }
  return goes_on();
}

void Downloader::AskForPause(double seconds) {
  const std::lock_guard lock(mutex_);
  pause_until_ = std::max(pause_until_, Now() + seconds);
}

double Downloader::PauseEnd() {
  const std::lock_guard lock(mutex_);
  return pause_until_;
}

void Downloader::Fail(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok() && !stopping()) failure_ = why;
  halt_ = true;
  changed_.notify_all();
}

void Downloader::Remark(std::string text) {
  const std::lock_guard lock(mutex_);
  if (remarks_.size() < kRemarksMax) remarks_.push_back(std::move(text));
}

}  // namespace baltoro
