#pragma once

// Fetches files over a bounded number of connections: parts of files side by side, resumed where
// they were cut off, the sum of each checked before it gets its name.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "pull/hub.h"
#include "pull/store.h"

namespace baltoro {

struct DownloadOptions {
  int workers = 8;
  int64_t part_bytes = int64_t{256} << 20;
  int retries = 8;
  double retry_wait_s = 1;
  HttpOptions http = {};
};

struct DownloadState {
  int64_t bytes = 0, bytes_all = 0;  // there, and in all
  int64_t bytes_before = 0;          // of those, found of an earlier attempt
  size_t files = 0, files_all = 0;
  size_t checking = 0;  // files whose sum is being computed
};

class Downloader {
 public:
  // `stop` ends it soon, with everything recorded for the next attempt.
  Downloader(const Hub& hub,
             std::string commit,
             FileStore& store,
             std::vector<RepoFile> files,
             DownloadOptions options,
             const std::atomic<bool>& stop);

  // Fetches all; `show` is called a few times a second by the calling thread. The first thing that
  // cannot be mended ends all.
  Status Run(const std::function<void(const DownloadState&)>& show);

  // What was mended on the way: for the log.
  std::vector<std::string> TakeRemarks();

 private:
  struct Active {
    RepoFile file;
    PartialFile partial;
    std::vector<FilePart> parts;
    std::vector<bool> taken;  // of each part: a worker is at it
    std::string etag;
    bool ranged = true;
    int generation = 0;  // counts new beginnings
    int workers = 0;
    bool closing = false;
    bool waiting = false;  // to begin anew, until its other workers have left: nobody else comes
    double saved_at = 0;
  };
  struct Claim {
    std::list<Active>::iterator file;
    size_t part = 0;
    int generation = 0;
  };
  enum class Turn { kAgain, kDone, kFailed };
  struct Attempt;

  void Work();
  std::optional<Claim> Take();
  std::optional<Claim> TakePart();
  Status OpenNext();
  Status Fetch(HttpSession& session, const Claim& claim);
  Turn FetchOnce(HttpSession& session, const Claim& claim, int& failures, Status& why);
  bool Accept(const Claim& claim, Attempt& attempt, const HttpHead& head, std::string_view bytes);
  Status BeginAnew(const Claim& claim, const std::string& why, bool ranged);
  Status Release(const Claim& claim);
  Status Close(Active& active);
  // False: somebody asked for a stop, or the file begins anew.
  bool Rest(const Claim& claim, double until);
  void AskForPause(double seconds);
  double PauseEnd();
  void Fail(const Status& why);
  void Remark(std::string text);
  bool stopping() const { return stop_.load() || halt_.load(); }

  const Hub& hub_;
  const std::string commit_;
  FileStore& store_;
  const std::vector<RepoFile> files_;
  DownloadOptions options_;
  const std::atomic<bool>& stop_;
  std::atomic<bool> halt_{false};  // what the sessions look at: a stop, or a failure

  std::mutex mutex_;  // all below
  std::condition_variable changed_;
  size_t next_ = 0;           // of files_
  std::list<Active> active_;  // at most one a worker that is not claimed to its last part
  DownloadState state_;
  double pause_until_ = 0;  // for all, since a server asked for it
  Status failure_;
  int running_ = 0;
  std::vector<std::string> remarks_;
};

}  // namespace baltoro
