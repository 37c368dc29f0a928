#include "pull/store.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "flags/hub_places.h"
#include "pull/checksum.h"
#include "weights/safetensors.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecordFolder = ".cache/huggingface";
constexpr const char* kPartialSuffix = ".baltoro";
constexpr size_t kRecordBytesMax = 4096;

bool IsFileOf(const std::string& path, int64_t bytes) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size == bytes;
}

// Three lines: commit, sum, seconds since 1970 of the record.
struct FolderRecord {
  std::string sum;
  double time = 0;
};
std::optional<FolderRecord> ReadFolderRecord(const std::string& path) {
  const Result<std::string> text = ReadFile(path, kRecordBytesMax);
  if (!text.ok()) return std::nullopt;
  const std::string& lines = text.value();
  const size_t first = lines.find('\n');
  const size_t second = first == lines.npos ? first : lines.find('\n', first + 1);
  if (second == lines.npos) return std::nullopt;
  FolderRecord out{.sum = lines.substr(first + 1, second - first - 1)};
  const char* begin = lines.data() + second + 1;
  if (std::from_chars(begin, lines.data() + lines.size(), out.time).ec != std::errc()) {
    return std::nullopt;
  }
  return out;
}

RepoFile WithSum(const std::string& path, std::string sum) {
  RepoFile out{.path = path};
  if (IsHex(sum, 64)) {
    out.sha256 = std::move(sum);
  } else if (IsHex(sum, 40)) {
    out.git_sha1 = std::move(sum);
  } else {
    out.path.clear();
  }
  return out;
}

class CacheStore final : public FileStore {
 public:
  CacheStore(const std::string& cache,
             const std::string& repo,
             std::string revision,
             std::string commit)
      : root_(cache + "/" + CacheFolderOf(repo)),
        lock_(fmt::format("{}/.locks/{}/baltoro.lock", cache, CacheFolderOf(repo))),
        revision_(std::move(revision)),
        commit_(std::move(commit)) {}

  std::string model_dir() const override { return root_ + "/snapshots/" + commit_; }
  std::string lock_path() const override { return lock_; }

  Result<bool> Has(const RepoFile& file, const LookRules&) override {
    // Where links cannot be made, huggingface_hub puts files themselves into the snapshot.
    return IsFileOf(BlobPath(file), file.bytes) ||
           IsFileOf(model_dir() + "/" + file.path, file.bytes);
  }

  std::string PartialPath(const RepoFile& file) const override {
    return BlobPath(file) + kPartialSuffix;
  }

  Status Place(const RepoFile& file, PartialFile* partial) override {
    if (partial != nullptr) BT_RETURN_IF_ERROR(partial->MoveTo(BlobPath(file)));
    const fs::path link = model_dir() + "/" + file.path;
    RemoveHeader(file.path);
    std::error_code error;
    if (partial == nullptr && IsFileOf(link.string(), file.bytes)) return {};
    BT_RETURN_IF_ERROR(MakeFolders(link.parent_path().string()));
    const fs::path target = fs::path(BlobPath(file)).lexically_relative(link.parent_path());
    fs::remove(link, error);
    fs::create_symlink(target, link, error);
    if (!error) return {};
    return Status(Code::kNotFound,
                  fmt::format("{}: {}; where links cannot be made, give --local-dir", link.string(),
                              error.message()));
  }

  Status Finish() override {
    if (revision_ == commit_) return {};
    return WriteSmallFile(root_ + "/refs/" + revision_, commit_);
  }

 private:
  std::string BlobPath(const RepoFile& file) const { return root_ + "/blobs/" + file.sum(); }

  std::string root_, lock_, revision_, commit_;
};

class FolderStore final : public FileStore {
 public:
  FolderStore(std::string dir, std::string commit)
      : dir_(std::move(dir)), commit_(commit.empty() ? std::string(40, '0') : std::move(commit)) {}

  std::string model_dir() const override { return dir_; }
  std::string lock_path() const override {
    return fmt::format("{}/{}/baltoro.lock", dir_, kRecordFolder);
  }

  Result<bool> Has(const RepoFile& file, const LookRules& rules) override {
    const std::string path = dir_ + "/" + file.path;
    if (!IsFileOf(path, file.bytes)) return false;
    if (RecordHolds(path, file)) return true;
    BT_ASSIGN_OR_RETURN(const std::string sum, SumOf(path, file, rules.stop));
    if (sum != file.sum()) return false;
    // It saves the next one the reading, and is no loss where it cannot be written.
    if (rules.may_write) static_cast<void>(WriteRecord(file).ok());
    return true;
  }

  std::string PartialPath(const RepoFile& file) const override {
    return fmt::format("{}.{}{}", RecordPath(file.path, ""), file.sum(), kPartialSuffix);
  }

  Status Place(const RepoFile& file, PartialFile* partial) override {
    const std::string path = dir_ + "/" + file.path;
    RemoveHeader(file.path);
    if (partial == nullptr) return {};
    BT_RETURN_IF_ERROR(partial->MoveTo(path));
    return WriteRecord(file);
  }

  Status Finish() override {
    // So that no version control takes the records for files of a project.
    const std::string ignore = fmt::format("{}/{}/.gitignore", dir_, kRecordFolder);
    return FileExists(ignore) ? Status() : WriteSmallFile(ignore, "*");
  }

 private:
  std::string RecordPath(const std::string& path, const char* suffix) const {
    return fmt::format("{}/{}/download/{}{}", dir_, kRecordFolder, path, suffix);
  }

  // Not where the file was written after it.
  bool RecordHolds(const std::string& path, const RepoFile& file) const {
    const auto record = ReadFolderRecord(RecordPath(file.path, ".metadata"));
    struct stat status = {};
    return record && record->sum == file.sum() && stat(path.c_str(), &status) == 0 &&
           static_cast<double>(status.st_mtime) - 1 <= record->time;
  }

  Status WriteRecord(const RepoFile& file) const {
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    return WriteSmallFile(RecordPath(file.path, ".metadata"),
                          fmt::format("{}\n{}\n{:.6f}\n", commit_, file.sum(), now));
  }

  std::string dir_, commit_;
};

}  // namespace

Status FileStore::PlaceHeader(const std::string& path, std::string_view header) const {
  const std::string name = path + kHeaderSuffix;
  if (names_.contains(name)) {
    return InvalidArgument(
        fmt::format("the header of {} would lie where the repository has a file of its own, {}: "
                    "pull all of it, "
                    "without a layout",
                    path, name));
  }
  return WriteSmallFile(model_dir() + "/" + name, header);
}

void FileStore::RemoveHeader(const std::string& path) const {
  const std::string name = path + kHeaderSuffix;
  if (!names_.contains(name)) unlink((model_dir() + "/" + name).c_str());
}

std::unique_ptr<FileStore> MakeCacheStore(const std::string& cache,
                                          const std::string& repo,
                                          const std::string& revision,
                                          const std::string& commit) {
  return std::make_unique<CacheStore>(cache, repo, revision, commit);
}

std::unique_ptr<FileStore> MakeFolderStore(const std::string& dir, const std::string& commit) {
  return std::make_unique<FolderStore>(dir, commit);
}

RepoFile RecordedFile(const std::string& model_dir, const std::string& name) {
  std::error_code error;
  const fs::path path = fs::path(model_dir) / name;
  const fs::path target = fs::read_symlink(path, error);
  if (!error && target.parent_path().filename() == "blobs") {
    return WithSum(name, target.filename().string());
  }
  const auto record =
      ReadFolderRecord(fmt::format("{}/{}/download/{}.metadata", model_dir, kRecordFolder, name));
  return record ? WithSum(name, record->sum) : RepoFile{};
}

}  // namespace baltoro
