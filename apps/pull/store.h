#pragma once

// Where the files of a repository go: the cache of huggingface_hub, in its layout, or a folder,
// with the record that huggingface_hub keeps in one. Each tool finds what the other one fetched.

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "pull/listing.h"
#include "pull/partial_file.h"

namespace baltoro {

struct LookRules {
  const std::atomic<bool>* stop = nullptr;  // ends the reading of a file, with kUnavailable
  // What reading a file showed is recorded, so that the next look need not read it.
  bool may_write = false;
};

class FileStore {
 public:
  virtual ~FileStore() = default;

  // The folder that `serve` takes.
  virtual std::string model_dir() const = 0;
  // Held by whoever writes.
  virtual std::string lock_path() const = 0;
  // Whether this very content is there. May read the file.
  virtual Result<bool> Has(const RepoFile& file, const LookRules& rules) = 0;
  // Where it is gathered. The name has the sum in it, so what was begun of another content is never
  // continued. Files of the same path here share one copy: one of them is gathered, and the others
  // are placed as if Has had found them.
  virtual std::string PartialPath(const RepoFile& file) const = 0;
  // Puts a file whose sum was checked into its place; in the cache also the link to one that Has
  // found. Any thread, of different files.
  virtual Status Place(const RepoFile& file, PartialFile* partial) = 0;
  // The header alone of a weight file that is left out, for `serve`; removed by Place of the whole.
  // kInvalidArgument where the repository has a file in its place.
  Status PlaceHeader(const std::string& path, std::string_view header) const;
  // What the repository has: a file of its own is never taken for a header that was left.
  void SetNames(std::set<std::string> names) { names_ = std::move(names); }
  // When all are there.
  virtual Status Finish() { return {}; }

 protected:
  void RemoveHeader(const std::string& path) const;

 private:
  std::set<std::string> names_;
};

// models--org--name below `cache`. `revision` is recorded for `commit` unless it is that.
std::unique_ptr<FileStore> MakeCacheStore(const std::string& cache,
                                          const std::string& repo,
                                          const std::string& revision,
                                          const std::string& commit);

// `commit` may be empty.
std::unique_ptr<FileStore> MakeFolderStore(const std::string& dir, const std::string& commit);

// The sum of a file of a model folder as a download left it: from the cache's link, or from the
// record of the folder. With an empty path if there is none.
RepoFile RecordedFile(const std::string& model_dir, const std::string& name);

}  // namespace baltoro
