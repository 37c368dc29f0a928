#pragma once

// Brings batches of file ranges into memory before they are asked for. One thread keeps several
// large reads under way, past the page cache unless all of a batch is in it, by io_uring where
// the system permits it and by threads where not. What is in the page cache already, or in files
// that cannot be read past it, or is shared with other readers, is left to FileSet::Read (the
// system is told what comes next).
//
//   ReadAhead ahead(files, batches, {});
//   while (auto batch = ahead.Next()) {     // on any number of threads
//     ... files.Read(...) ...               // ranges of this batch come from memory
//     ahead.Done(*batch);
//   }
//
// A read past the page cache that fails is counted, and told in one line of the log; its batch, and
// all that follows of its file, is left to FileSet::Read as well, which tells what is still wrong.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "disk/file_set.h"
#include "disk/read_queue.h"

namespace baltoro {

struct ReadOptions {
  int batches_ahead = 10;  // in memory or under way at once
  bool io_uring = true;    // false: threads
  bool direct = true;      // false: everything through the page cache
};

class ReadAhead {
 public:
  // `files` outlives this object, which is the only one over it.
  ReadAhead(FileSet& files,
            std::vector<std::vector<FileRange>> batches,
            const ReadOptions& options);
  // Ends early as well. No other thread may still be in Next, or in a batch.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The number of a batch that may be worked on now; nothing after the last one. Any thread.
  std::optional<size_t> Next();
  // The batch's memory may be used again. Any thread, once for each batch.
  void Done(size_t batch);
  // Copies a range from a batch that is in memory; false if none has it. Any thread.
  bool Copy(const FileRange& range, void* out);

  // How it reads, for people: "io_uring, past the page cache". It changes where reads fail. Any
  // thread.
  std::string Way() const;
  // Reads past the page cache that have failed so far. Any thread.
  int64_t failed_reads() const { return failed_reads_.load(std::memory_order_relaxed); }

 private:
  struct FreeMemory {
    void operator()(char* memory) const;
  };
  struct Memory {
    std::unique_ptr<char, FreeMemory> data;
    uint64_t bytes = 0;
  };
  struct Stretch {
    FileRange range;
    char* data = nullptr;
    uint64_t done = 0;
  };
  struct Batch {
    std::vector<FileRange> ranges;
    std::vector<Stretch> stretches;  // empty: nothing is held in memory
    Memory memory;
    size_t under_way = 0;  // reads
    bool failed = false;
    bool ready = false, done = false;
    int copying = 0;
  };

  void Run();
  // Begins to read a batch, or leaves it to the page cache.
  void Start(size_t number);
  bool IsCached(const std::vector<Stretch>& stretches) const;
  void Advise(const std::vector<FileRange>& ranges) const;
  void SubmitNext(size_t batch, size_t stretch);
  void Collect();  // waits for one read
  bool IsStopped() const;
  void OnFailedRead(const FileRange& range, int64_t result);
  void GiveOut(size_t number);
  Memory TakeMemory(uint64_t bytes);  // without data: there is none
  void FreeIfUnused(Batch& batch);    // under the mutex
  void OpenDirect();

  FileSet& files_;
  const ReadOptions options_;
  std::vector<int> direct_fds_;          // of each file; -1: cannot be read past the page cache
  std::vector<bool> given_up_;           // of each file: a direct read has failed; the thread's
  std::atomic<size_t> direct_files_{0};  // that are read past the page cache
  std::atomic<int64_t> failed_reads_{0};
  std::unique_ptr<ReadQueue> queue_;
  bool uring_ = false;
  size_t under_way_ = 0;  // reads

  mutable std::mutex mutex_;
  std::condition_variable given_, taken_back_;
  std::vector<Batch> batches_;
  std::deque<size_t> ready_;
  std::vector<size_t> active_;  // ready and not done
  std::vector<Memory> free_;
  size_t given_out_ = 0;  // batches that became ready
  size_t open_ = 0;       // batches begun and not done
  bool stop_ = false;
  std::jthread thread_;
};

}  // namespace baltoro
