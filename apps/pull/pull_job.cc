#include "pull/pull_job.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "pull/download.h"
#include "pull/selection.h"
#include "pull/small_fetch.h"
#include "terminal/progress_line.h"
#include "weights/safetensors.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;

constexpr size_t kConfigBytesMax = 16 << 20;

// Bytes free for this user where `path` is, or will be.
int64_t FreeBytes(fs::path path) {
  std::error_code error;
  path = fs::absolute(path, error);
  while (!fs::exists(path, error) && path.has_parent_path() && path != path.parent_path()) {
    path = path.parent_path();
  }
  struct statvfs status = {};
  if (statvfs(path.c_str(), &status) != 0) return INT64_MAX;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

// Bytes of a file that lie on the disk already.
int64_t TakenBytes(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 ? int64_t{status.st_blocks} * 512 : 0;
}

int64_t BytesOf(const std::vector<RepoFile>& files) {
  int64_t bytes = 0;
  for (const RepoFile& file : files) bytes += file.bytes;
  return bytes;
}

std::string Count(size_t files) {
  return fmt::format("{} file{}", files, files == 1 ? "" : "s");
}

struct Plan {
  std::vector<RepoFile> fetch, here, left_out;
  std::vector<RepoFile> twins;  // of the same content as one of `fetch`, where they share a copy
  int64_t room = 0;             // bytes that the disk must still take
};

class Job {
 public:
  Job(const PullCommand& command, std::string user_agent, const std::atomic<bool>& stop)
      : command_(command), user_agent_(std::move(user_agent)), stop_(stop), line_(command.quiet) {}

  Result<std::string> Run() {
    BT_ASSIGN_OR_RETURN(hub_, HubOf(command_));
    if (!hub_.token.empty() && hub_.endpoint.starts_with("http://")) {
      Tell(fmt::format("the token goes to {} unencrypted", hub_.shown));
    }
    BT_RETURN_IF_ERROR(StartHttp());
    BT_ASSIGN_OR_RETURN(HttpSession session, HttpSession::Create(SessionOptions()));
    BT_ASSIGN_OR_RETURN(const RepoListing listing, FetchListing(session));
    commit_ = listing.commit;
    BT_ASSIGN_OR_RETURN(std::vector<RepoFile> chosen, ChooseFiles(listing.files, command_));
    Plan plan;
    if (command_.layout.given) {
      BT_RETURN_IF_ERROR(LeaveOut(session, listing.files, chosen, plan.left_out));
    }
    store_ = MakeStore();
    std::set<std::string> names;
    for (const RepoFile& file : listing.files) names.insert(file.path);
    store_->SetNames(std::move(names));
    // Begun before anything is looked at: what another process writes is not counted as here.
    std::optional<FolderLock> lock;
    if (!command_.dry_run) {
      BT_ASSIGN_OR_RETURN(lock, FolderLock::Take(store_->lock_path()));
    }
    BT_RETURN_IF_ERROR(CheckLeftOut(plan.left_out));
    BT_RETURN_IF_ERROR(Sort(std::move(chosen), plan));
    Tell(plan);
    BT_RETURN_IF_ERROR(CheckRoom(plan));
    if (command_.dry_run) return store_->model_dir();
    BT_RETURN_IF_ERROR(Download(plan));
    BT_RETURN_IF_ERROR(FetchHeaders(session, plan.left_out));
    BT_RETURN_IF_ERROR(store_->Finish());
    std::error_code error;
    return fs::absolute(store_->model_dir(), error).string();
  }

 private:
  HttpOptions SessionOptions() const {
    return {.endpoint = hub_.endpoint,
            .token = hub_.token,
            .token_as_cookie = hub_.modelscope,
            .ca_file = command_.places.ca_file,
            .user_agent = user_agent_,
            .stall_s = command_.stall_s,
            .stop = &stop_};
  }

  RetryRules Rules() {
    return {.retries = command_.retries,
            .wait_s = command_.retry_wait_s,
            .stop = &stop_,
            .tell = [this](const std::string& line) { Tell(line); }};
  }

  Result<RepoListing> FetchListing(HttpSession& session) {
    const std::string what = fmt::format("list of the files of {}", hub_.repo);
    BT_ASSIGN_OR_RETURN(
        const std::string text,
        FetchSmall(session, hub_,
                   {.url = hub_.ListingUrl(), .what = what, .bytes_max = kListingBytesMax},
                   Rules()));
    auto listing = hub_.modelscope ? ParseModelScopeListing(text) : ParseHuggingFaceListing(text);
    if (listing.ok()) return listing;
    return Status(listing.status().code(),
                  fmt::format("{} at {}: {}", hub_.repo, hub_.shown, listing.status().message()));
  }

  Result<Json> FetchJson(HttpSession& session, const RepoFile& file, size_t bytes_max) {
    BT_ASSIGN_OR_RETURN(const std::string text, FetchSmall(session, hub_,
                                                           {.url = hub_.FileUrl(file.path, commit_),
                                                            .what = file.path,
                                                            .bytes_max = bytes_max},
                                                           Rules()));
    auto json = ParseJson(text);
    if (json.ok()) return json;
    return InvalidArgument(file.path + ": " + json.status().message());
  }

  // Moves weight files that this node's ranks do not read from `chosen` to `left_out`.
  Status LeaveOut(HttpSession& session,
                  const std::vector<RepoFile>& all,
                  std::vector<RepoFile>& chosen,
                  std::vector<RepoFile>& left_out) {
    const auto find = [&](const char* name) {
      return std::ranges::find_if(all, [&](const RepoFile& file) { return file.path == name; });
    };
    const auto config = find("config.json");
    auto index = find("model.safetensors.index.json");
    if (index == all.end()) index = find("quant_model_weights.safetensors.index.json");
    if (config == all.end() || index == all.end()) {
      Tell("the weights have no index: every node reads all of them");
      return {};
    }
    BT_ASSIGN_OR_RETURN(const Json config_json, FetchJson(session, *config, kConfigBytesMax));
    BT_ASSIGN_OR_RETURN(const Json index_json, FetchJson(session, *index, kTextBytesMax));
    const auto model = K2Config::Parse(config_json);
    if (!model.ok()) return InvalidArgument("config.json: " + model.status().message());
    const auto shards = ParseShardIndex(index_json);
    if (!shards.ok()) return InvalidArgument(index->path + ": " + shards.status().message());
    BT_ASSIGN_OR_RETURN(const std::vector<std::string> others,
                        FilesOfOtherNodes(shards.value(), model.value(), command_.layout));
    const std::set<std::string> names(others.begin(), others.end());
    std::vector<RepoFile> kept;
    for (RepoFile& file : chosen) {
      (names.contains(file.path) ? left_out : kept).push_back(std::move(file));
    }
    chosen = std::move(kept);
    return {};
  }

  std::unique_ptr<FileStore> MakeStore() const {
    if (!command_.local_dir.empty()) return MakeFolderStore(command_.local_dir, commit_);
    const bool given = !command_.cache_dir.empty();
    if (hub_.modelscope) {
      const std::string cache = given ? command_.cache_dir : command_.places.modelscope_cache;
      return MakeFolderStore(cache + "/" + ModelScopeFolderOf(hub_.repo), commit_);
    }
    return MakeCacheStore(given ? command_.cache_dir : command_.places.hf_cache, hub_.repo,
                          hub_.revision, commit_);
  }

  // Files that no rank of this node reads may be here of another layout, but whole: what is there
  // comes before a header.
  Status CheckLeftOut(const std::vector<RepoFile>& files) const {
    for (const RepoFile& file : files) {
      const std::string path = store_->model_dir() + "/" + file.path;
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
      if (error) return Status(Code::kNotFound, fmt::format("{}: {}", path, error.message()));
      if (bytes == file.bytes) continue;
      return InvalidArgument(
          fmt::format("{} has {} bytes, the listing says {}: remove it; no rank of this node reads "
                      "it, so its header is enough",
                      path, bytes, file.bytes));
    }
    return {};
  }

  Status Sort(std::vector<RepoFile> chosen, Plan& plan) {
    const LookRules rules{.stop = &stop_, .may_write = !command_.dry_run};
    std::set<std::string> gathered;
    for (RepoFile& file : chosen) {
      if (stop_.load()) return Status(Code::kUnavailable, "stopped");
      if (!command_.force) {
        BT_ASSIGN_OR_RETURN(const bool here, store_->Has(file, rules));
        if (here) {
          plan.here.push_back(std::move(file));
          continue;
        }
      }
      const std::string partial = store_->PartialPath(file);
      if (!gathered.insert(partial).second) {
        plan.twins.push_back(std::move(file));
        continue;
      }
      plan.room += std::max<int64_t>(0, file.bytes - TakenBytes(partial));
      plan.fetch.push_back(std::move(file));
    }
    return {};
  }

  // Above the progress. That nobody reads it any more, because a terminal has gone, is no reason to
  // end a download.
  void Tell(const std::string& line) {
    if (command_.quiet) return;
    line_.End();
    std::fputs((line + "\n").c_str(), stderr);
    std::fflush(stderr);
  }

  void Tell(const Plan& plan) {
    Tell(fmt::format("{} ({}{}) from {}", hub_.repo, hub_.revision,
                     commit_.empty() || commit_ == hub_.revision ? "" : ", commit " + commit_,
                     hub_.shown));
    if (command_.dry_run) {
      const auto list = [&](const char* what, const std::vector<RepoFile>& files) {
        for (const RepoFile& file : files) {
          Tell(fmt::format("  {:<9} {:>10}  {}", what, BytesText(file.bytes), file.path));
        }
      };
      list("here", plan.here);
      list("fetch", plan.fetch);
      list("link", plan.twins);
      list("left out", plan.left_out);
    }
    if (!plan.here.empty()) {
      Tell(fmt::format("here already: {}, {}", Count(plan.here.size()),
                       BytesText(BytesOf(plan.here))));
    }
    if (command_.layout.given) {
      Tell(fmt::format(
          "left out: {}, {}, that no rank of node {} of {} reads (of each its header is fetched)",
          Count(plan.left_out.size()), BytesText(BytesOf(plan.left_out)), command_.layout.node,
          command_.layout.nodes));
    }
    Tell(fmt::format(
        "to fetch: {}, {}{}; free at {}: {}", Count(plan.fetch.size()),
        BytesText(BytesOf(plan.fetch)),
        plan.twins.empty() ? "" : fmt::format(" (and {} equal to them)", Count(plan.twins.size())),
        store_->model_dir(), BytesText(FreeBytes(store_->model_dir()))));
  }

  Status CheckRoom(const Plan& plan) const {
    const int64_t free = FreeBytes(store_->model_dir());
    if (plan.room <= free) return {};
    return Status(Code::kResourceExhausted,
                  fmt::format("{} need {}, and {} has {} free: make room, or name another disk by "
                              "--local-dir{}",
                              Count(plan.fetch.size()), BytesText(plan.room), store_->model_dir(),
                              BytesText(free), hub_.modelscope ? "" : " or HF_HOME"));
  }

  std::string ProgressText(const DownloadState& state) {
    std::string text = rate_.Text(state.bytes, state.bytes_all, MonotonicClock().Now());
    text += fmt::format(", {} of {} files", state.files, state.files_all);
    if (state.checking > 0) text += fmt::format(", checking {}", state.checking);
    return text;
  }

  Status Download(const Plan& plan) {
    if (!plan.fetch.empty()) {
      Downloader downloader(hub_, commit_, *store_, plan.fetch,
                            {.workers = command_.max_workers,
                             .part_bytes = command_.part_bytes,
                             .retries = command_.retries,
                             .retry_wait_s = command_.retry_wait_s,
                             .http = SessionOptions()},
                            stop_);
      const double start = MonotonicClock().Now();
      DownloadState last;
      const auto tell = [&] {
        for (const std::string& remark : downloader.TakeRemarks()) Tell(remark);
      };
      const Status done = downloader.Run([&](const DownloadState& state) {
        last = state;
        tell();
        if (line_.due()) line_.Show(ProgressText(state));
      });
      tell();
      line_.End();
      BT_RETURN_IF_ERROR(done);
      const double seconds = std::max(1e-3, MonotonicClock().Now() - start);
      const int64_t came = last.bytes_all - last.bytes_before;
      Tell(fmt::format(
          "fetched {} in {}, {}/s{}; all sums are right", BytesText(came), DurationText(seconds),
          BytesText(static_cast<int64_t>(static_cast<double>(came) / seconds)),
          last.bytes_before > 0
              ? fmt::format(" ({} were there of an earlier attempt)", BytesText(last.bytes_before))
              : ""));
    }
    for (const auto* files : {&plan.here, &plan.twins}) {
      for (const RepoFile& file : *files) BT_RETURN_IF_ERROR(store_->Place(file, nullptr));
    }
    return {};
  }

  Status FetchHeaders(HttpSession& session, const std::vector<RepoFile>& files) {
    for (const RepoFile& file : files) {
      const std::string path = store_->model_dir() + "/" + file.path;
      if (FileExists(path)) continue;
      const Result<uint64_t> known = SizeByHeader(path);
      if (known.ok() && known.value() == static_cast<uint64_t>(file.bytes)) continue;
      BT_ASSIGN_OR_RETURN(const std::string header,
                          FetchHeader(session, hub_, commit_, file, Rules()));
      BT_RETURN_IF_ERROR(store_->PlaceHeader(file.path, header));
    }
    return {};
  }

  const PullCommand& command_;
  const std::string user_agent_;
  const std::atomic<bool>& stop_;
  ProgressLine line_;
  ByteProgress rate_;
  Hub hub_;
  std::string commit_;
  std::unique_ptr<FileStore> store_;
};

}  // namespace

Result<std::string> PullRepo(const PullCommand& command,
                             const std::string& user_agent,
                             const std::atomic<bool>& stop) {
  if (command.places.offline && !command.modelscope) {
    return InvalidArgument("HF_HUB_OFFLINE is set, so nothing is downloaded: unset it");
  }
  return Job(command, user_agent, stop).Run();
}

}  // namespace baltoro
