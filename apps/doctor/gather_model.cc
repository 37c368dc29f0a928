#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "base/file.h"
#include "disk/file_set.h"
#include "doctor/gather.h"
#include "model/k2_config.h"
#include "model_location.h"
#include "pull/checksum.h"
#include "pull/store.h"
#include "terminal/progress_line.h"
#include "terminal/safe_text.h"
#include "weights/checkpoint_listing.h"
#include "weights/safetensors.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kDiskBytesMax = int64_t{4} << 30;
constexpr int64_t kDiskBytesLeast = int64_t{4} << 20;  // below, the time is that of opening
constexpr double kDiskSeconds = 3;
constexpr size_t kReadBytes = size_t{4} << 20;
constexpr int kReaders = 8;
constexpr size_t kAlignment = 4096;

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};

// Reads a file past the page cache from several places at once, for some seconds at most.
void MeasureDisk(const std::string& path, ModelFacts& out) {
  const Result<InputFile> file = InputFile::Open(path, kWeightFileBytesMax);
  if (!file.ok()) {
    out.disk_problem = file.status().message();
    return;
  }
  const int direct = file.value().OpenDirect();
  if (direct < 0) {
    out.disk_problem = fmt::format("{}: its file system lets nobody read past the page cache ({})",
                                   path, std::strerror(errno));
    return;
  }
  const int64_t end = std::min<int64_t>(static_cast<int64_t>(file.value().bytes()), kDiskBytesMax);
  std::atomic<int64_t> next{0}, done{0};
  std::atomic<int> problem{0};
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < kReaders; ++i) {
      readers.emplace_back([&] {
        const std::unique_ptr<void, FreeDeleter> buffer(std::aligned_alloc(kAlignment, kReadBytes));
        while (buffer != nullptr && seconds() < kDiskSeconds) {
          const int64_t at = next.fetch_add(kReadBytes);
          if (at >= end) break;
          const ssize_t got = pread(direct, buffer.get(), kReadBytes, at);
          if (got < 0) problem = errno;
          if (got <= 0) break;
          done += got;
        }
      });
    }
  }
  close(direct);
  out.disk_bytes = done;
  if (problem != 0) {
    out.disk_problem =
        fmt::format("{}: {}, as it is read past the page cache", path, std::strerror(problem));
    return;
  }
  if (done >= kDiskBytesLeast) out.disk_gb_per_s = static_cast<double>(done) / 1e9 / seconds();
}

void CheckSums(const std::vector<std::string>& files, ModelFacts& out) {
  ProgressLine line;
  size_t done = 0;
  for (const std::string& name : files) {
    line.Show(
        fmt::format("checking sums: {} of {} files, {}", done++, files.size(), ForTerminal(name)));
    const RepoFile recorded = RecordedFile(out.dir, name);
    if (recorded.path.empty()) {
      ++out.sums_unknown;
      continue;
    }
    const Result<std::string> sum = SumOf(out.dir + "/" + name, recorded);
    if (sum.ok() && sum.value() == recorded.sum()) {
      ++out.sums_right;
    } else {
      out.sums_wrong.push_back({.file = name,
                                .wanted = recorded.sum(),
                                .found = sum.ok() ? sum.value() : sum.status().message()});
    }
  }
}

// Of a model folder, without what a download keeps for itself.
std::vector<std::string> FilesOf(const std::string& dir) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    const bool is_file = fs::is_regular_file(at->path(), ignored);
    if (is_file && !name.ends_with(kHeaderSuffix)) out.push_back(name);
  }
  std::ranges::sort(out);
  return out;
}

}  // namespace

ModelFacts GatherModel(const DoctorAsk& ask) {
  ModelFacts out;
  out.asked = ask.model;
  if (ask.model.empty()) return out;
  const Result<std::string> dir = LocateModel(ask.model, ask.program);
  if (!dir.ok()) {
    out.missing = dir.status().message();
    return out;
  }
  out.dir = dir.value();
  if (const auto config = K2Config::Read(out.dir); !config.ok()) {
    out.config_problem = config.status().message();
  }
  if (!FileExists(out.dir + "/tiktoken.model") && !FileExists(out.dir + "/tokenizer.json")) {
    out.vocabulary_problem = "there is no tiktoken.model, the vocabulary";
  }
  const CheckpointListing listing = ListCheckpoint(out.dir);
  std::string largest;
  int64_t largest_bytes = 0;
  for (const ListedFile& file : listing.files) {
    ++out.files;
    if (!FileExists(out.dir + "/" + file.name)) {
      out.elsewhere += FileExists(out.dir + "/" + file.name + kHeaderSuffix) ? 1 : 0;
      continue;
    }
    out.bytes += file.bytes;
    if (file.bytes > largest_bytes) largest = file.name;
    largest_bytes = std::max(largest_bytes, file.bytes);
  }
  for (const FileProblem& problem : listing.problems) {
    const bool elsewhere = problem.what == kHeaderAloneProblem;
    if (!elsewhere) out.problems.push_back(problem.where + ": " + problem.what);
  }
  if (!largest.empty()) MeasureDisk(out.dir + "/" + largest, out);
  out.sums_asked = ask.sums;
  if (ask.sums) CheckSums(FilesOf(out.dir), out);
  return out;
}

}  // namespace baltoro
