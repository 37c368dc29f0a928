#include "disk/read_ahead.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "disk/read_batches.h"

namespace baltoro {
namespace {

constexpr uint64_t kUnit = 4096;                     // what direct reads are aligned to
constexpr uint64_t kHoleMax = uint64_t{64} << 10;    // sooner read than left out
constexpr uint64_t kReadBytes = uint64_t{4} << 20;   // of one read
constexpr uint64_t kProbeEvery = uint64_t{1} << 20;  // where the page cache is asked
constexpr uint64_t kMemoryUnit = uint64_t{2} << 20;
constexpr int kDepth = 32;  // reads under way

constexpr uint64_t TagOf(size_t batch, size_t stretch) {
  return uint64_t{batch} << 32 | uint64_t{stretch};
}

}  // namespace

void ReadAhead::FreeMemory::operator()(char* memory) const {
  std::free(memory);
}

ReadAhead::ReadAhead(FileSet& files,
                     std::vector<std::vector<FileRange>> batches,
                     const ReadOptions& options)
    : files_(files), options_(options), batches_(batches.size()) {
  for (size_t i = 0; i < batches.size(); ++i) batches_[i].ranges = std::move(batches[i]);
  OpenDirect();
  if (options.io_uring) queue_ = MakeUringQueue(kDepth);
  uring_ = queue_ != nullptr;
  if (!uring_) queue_ = MakeThreadQueue(kDepth);
  ReadAhead* none = nullptr;
  BT_CHECK(files_.ahead_.compare_exchange_strong(none, this));
  thread_ = std::jthread([this] { Run(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  taken_back_.notify_all();
  given_.notify_all();
  thread_.join();
  files_.ahead_.store(nullptr);
  queue_.reset();
  for (const int fd : direct_fds_) {
    if (fd >= 0) close(fd);
  }
}

void ReadAhead::OpenDirect() {
  for (size_t i = 0; i < files_.size(); ++i) {
    const int fd = options_.direct ? files_.OpenDirect(i) : -1;
    direct_fds_.push_back(fd);
    if (fd >= 0) ++direct_files_;
  }
  given_up_.resize(direct_fds_.size());
}

std::string ReadAhead::Way() const {
  const size_t direct = direct_files_;
  if (direct == 0) return "through the page cache";
  std::string way = std::string(uring_ ? "io_uring" : "threads") + ", past the page cache";
  if (direct < files_.size()) {
    way += fmt::format(" for {} of {} files", direct, files_.size());
  }
  return way;
}

std::optional<size_t> ReadAhead::Next() {
  std::unique_lock lock(mutex_);
  given_.wait(lock, [&] { return stop_ || !ready_.empty() || given_out_ == batches_.size(); });
  if (stop_ || ready_.empty()) return std::nullopt;
  const size_t batch = ready_.front();
  ready_.pop_front();
  return batch;
}

void ReadAhead::Done(size_t number) {
  {
    const std::lock_guard lock(mutex_);
    Batch& batch = batches_[number];
    BT_CHECK(batch.ready && !batch.done);
    batch.done = true;
    std::erase(active_, number);
    FreeIfUnused(batch);
    --open_;
  }
  taken_back_.notify_one();
}

void ReadAhead::FreeIfUnused(Batch& batch) {
  if (!batch.done || batch.copying > 0) return;
  batch.stretches.clear();
  if (batch.memory.data != nullptr) free_.push_back(std::move(batch.memory));
}

bool ReadAhead::Copy(const FileRange& range, void* out) {
  std::unique_lock lock(mutex_);
  for (const size_t number : active_) {
    Batch& batch = batches_[number];
    for (const Stretch& stretch : batch.stretches) {
      const FileRange& held = stretch.range;
      if (held.file != range.file || range.offset < held.offset || range.end() > held.end()) {
        continue;
      }
      const char* from = stretch.data + (range.offset - held.offset);
      ++batch.copying;
      lock.unlock();
      std::memcpy(out, from, range.bytes);
      lock.lock();
      --batch.copying;
      FreeIfUnused(batch);
      return true;
    }
  }
  return false;
}

void ReadAhead::Run() {
  for (size_t next = 0; next < batches_.size() || under_way_ > 0;) {
    {
      std::unique_lock lock(mutex_);
      const auto may_begin = [&] {
        return next < batches_.size() && open_ < static_cast<size_t>(options_.batches_ahead) &&
               under_way_ < kDepth;
      };
      // With reads under way there is something else to wait for.
      if (under_way_ == 0) taken_back_.wait(lock, [&] { return stop_ || may_begin(); });
      if (stop_) break;
      if (may_begin()) {
        ++open_;
        lock.unlock();
        Start(next++);
        continue;
      }
    }
    Collect();
  }
  while (under_way_ > 0) Collect();
}

void ReadAhead::Start(size_t number) {
  Batch& batch = batches_[number];
  std::vector<Stretch> stretches;
  uint64_t bytes = 0;
  bool direct = true;
  std::vector<FileRange> alone, shared;
  for (const FileRange& range : batch.ranges) (range.shared ? shared : alone).push_back(range);
  for (const FileRange& range : shared) {
    files_.bytes_shared_.fetch_add(static_cast<int64_t>(range.bytes), std::memory_order_relaxed);
  }
  Advise(shared);
  for (const FileRange& range : MergeRanges(alone, kHoleMax, kUnit)) {
    direct = direct && direct_fds_[range.file] >= 0 && !given_up_[range.file];
    stretches.push_back({.range = range});
    bytes += range.bytes;
  }
  if (stretches.empty() || !direct || IsCached(stretches)) {
    if (!direct) Advise(alone);
    GiveOut(number);
    return;
  }
  batch.memory = TakeMemory(bytes);
  if (batch.memory.data == nullptr) return GiveOut(number);
  char* at = batch.memory.data.get();
  for (Stretch& stretch : stretches) {
    stretch.data = at;
    at += stretch.range.bytes;
  }
  batch.stretches = std::move(stretches);
  batch.under_way = batch.stretches.size();
  for (size_t i = 0; i < batch.stretches.size(); ++i) SubmitNext(number, i);
}

// The page cache is asked for single pages; where it holds some and not others, its own reading
// will do.
bool ReadAhead::IsCached(const std::vector<Stretch>& stretches) const {
  for (const Stretch& stretch : stretches) {
    const FileRange& range = stretch.range;
    const uint64_t end = std::min(range.end(), files_.bytes(range.file));
    for (uint64_t at = range.offset; at < end; at += kProbeEvery) {
      char byte = 0;
      const iovec to{.iov_base = &byte, .iov_len = 1};
      if (preadv2(files_.fd(range.file), &to, 1, static_cast<off_t>(at), RWF_NOWAIT) != 1) {
        return false;
      }
    }
  }
  return true;
}

void ReadAhead::Advise(const std::vector<FileRange>& ranges) const {
  for (const FileRange& range : ranges) {
    posix_fadvise(files_.fd(range.file), static_cast<off_t>(range.offset),
                  static_cast<off_t>(range.bytes), POSIX_FADV_WILLNEED);
  }
}

ReadAhead::Memory ReadAhead::TakeMemory(uint64_t bytes) {
  Memory memory;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      memory = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (memory.bytes >= bytes) return memory;
  memory.data.reset();  // before more is taken
  memory.bytes = (bytes + kMemoryUnit - 1) / kMemoryUnit * kMemoryUnit;
  memory.data.reset(static_cast<char*>(std::aligned_alloc(kUnit, memory.bytes)));
  if (memory.data == nullptr) memory.bytes = 0;
  return memory;
}

void ReadAhead::SubmitNext(size_t number, size_t i) {
  const Stretch& stretch = batches_[number].stretches[i];
  const uint64_t bytes = std::min(kReadBytes, stretch.range.bytes - stretch.done);
  while (under_way_ >= kDepth) Collect();  // which may submit the rest of what it collects
  queue_->Submit({.fd = direct_fds_[stretch.range.file],
                  .offset = stretch.range.offset + stretch.done,
                  .out = stretch.data + stretch.done,
                  .bytes = bytes,
                  .tag = TagOf(number, i)});
  ++under_way_;
}

void ReadAhead::Collect() {
  const ReadResult result = queue_->Wait();
  --under_way_;
  const size_t number = result.tag >> 32, i = result.tag & 0xFFFFFFFF;
  Batch& batch = batches_[number];
  Stretch& stretch = batch.stretches[i];
  const uint64_t needed =
      std::min(stretch.range.end(), files_.bytes(stretch.range.file)) - stretch.range.offset;
  if (result.bytes > 0) {
    stretch.done += static_cast<uint64_t>(result.bytes);
    files_.bytes_read_.fetch_add(result.bytes, std::memory_order_relaxed);
  }
  const bool again = result.bytes == -EINTR || result.bytes == -EAGAIN;
  // A direct read goes on from a whole unit only.
  const bool cut = stretch.done < needed && stretch.done % kUnit != 0;
  if ((result.bytes <= 0 && !again) || cut) {
    batch.failed = true;
    OnFailedRead(stretch.range, result.bytes);
  }
  if (stretch.done < needed && !batch.failed && !IsStopped()) {
    SubmitNext(number, i);
    return;
  }
  if (--batch.under_way == 0) GiveOut(number);
}

bool ReadAhead::IsStopped() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void ReadAhead::OnFailedRead(const FileRange& range, int64_t result) {
  if (failed_reads_.fetch_add(1) == 0) {
    BT_LOG(Warning, "{}: a read past the page cache failed ({}); it is read through it",
           files_.path(range.file),
           result < 0 ? std::strerror(static_cast<int>(-result)) : "the file ended early");
  }
  if (given_up_[range.file]) return;
  given_up_[range.file] = true;
  --direct_files_;
}

void ReadAhead::GiveOut(size_t number) {
  {
    const std::lock_guard lock(mutex_);
    Batch& batch = batches_[number];
    // What is not whole, as it failed or all is being stopped, is not handed out.
    if (batch.failed || stop_) batch.stretches.clear();
    batch.ready = true;
    ready_.push_back(number);
    active_.push_back(number);
    ++given_out_;
  }
  given_.notify_all();
}

}  // namespace baltoro
