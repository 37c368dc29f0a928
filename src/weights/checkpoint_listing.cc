#include "weights/checkpoint_listing.h"

#include <fmt/format.h>

#include <filesystem>
#include <unordered_set>

#include "base/file.h"
#include "base/json.h"
#include "disk/file_set.h"
#include "weights/checkpoint.h"
#include "weights/shard_index.h"

namespace baltoro {
namespace {

// The header of a file and its size. `alone`: of a file that is not here but for it.
Result<SafetensorsHeader> ReadHeader(const std::string& path, int64_t& file_bytes, bool& alone) {
  const std::string beside = path + kHeaderSuffix;
  alone = !FileExists(path) && FileExists(beside);
  if (alone) {
    BT_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(beside, kWeightFileBytesMax));
    BT_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeaderAlone(file.fd(), file.bytes()));
    file_bytes = static_cast<int64_t>(WholeFileBytes(header));
    return header;
  }
  BT_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path, kWeightFileBytesMax));
  file_bytes = static_cast<int64_t>(file.bytes());
  return ReadSafetensorsHeader(file.fd(), file.bytes());
}

class Lister {
 public:
  Lister(const std::string& dir, const OnListedFile& on_file) : dir_(dir), on_file_(on_file) {}

  CheckpointListing Run() {
    const auto files = FindWeightFiles(dir_);
    if (!files.ok()) {
      Problem(dir_, "no weights: no safetensors file and no index of a known name");
    } else if (files.value().index.empty()) {
      AddFile(std::filesystem::path(files.value().single).filename().string(), nullptr);
    } else {
      AddIndexed(files.value().index);
    }
    return std::move(out_);
  }

 private:
  void Problem(std::string where, std::string what) {
    out_.problems.push_back({std::move(where), std::move(what)});
  }

  // Of a file, whose errors begin with its whole path.
  void Unreadable(const std::string& name, std::string why) {
    const std::string path = dir_ + "/" + name + ": ";
    if (why.starts_with(path)) why.erase(0, path.size());
    Problem(name, std::move(why));
  }

  void AddIndexed(const std::string& path) {
    const std::string name = std::filesystem::path(path).filename().string();
    const auto json = ReadJsonFile(path);
    if (!json.ok()) return Unreadable(name, json.status().message());
    const auto index = ParseShardIndex(json.value());
    if (!index.ok()) return Problem(name, index.status().message());
    out_.stated_bytes = index.value().total_size;
    for (const auto& [file, names] : index.value().files) AddFile(file, &names);
  }

  // `indexed` is what the index says is in it; null: no index.
  void AddFile(const std::string& name, const std::vector<std::string>* indexed) {
    if (on_file_) on_file_(name);
    out_.files.push_back({.name = name});
    bool alone = false;
    auto header = ReadHeader(dir_ + "/" + name, out_.files.back().bytes, alone);
    if (!header.ok()) return Unreadable(name, header.status().message());
    if (alone) Problem(name, std::string(kHeaderAloneProblem));
    std::unordered_set<std::string> missing;
    if (indexed != nullptr) missing.insert(indexed->begin(), indexed->end());
    for (SafetensorsEntry& entry : header.value().entries) {
      if (indexed != nullptr && missing.erase(entry.name) == 0) {
        Problem(entry.name, fmt::format("is in {}, but not so in the index", name));
        continue;
      }
      std::string canonical = CanonicalName(entry.name);
      if (!seen_.insert(canonical).second) {
        Problem(entry.name, fmt::format("is there twice, once more in {}", name));
        continue;
      }
      out_.tensors.push_back({.name = std::move(entry.name),
                              .canonical = std::move(canonical),
                              .file = out_.files.size() - 1,
                              .dtype = entry.dtype,
                              .shape = std::move(entry.shape),
                              .bytes = static_cast<int64_t>(entry.bytes)});
    }
    for (const std::string& absent : missing) {
      Problem(absent, fmt::format("is not in {}, though the index says so", name));
    }
  }

  const std::string& dir_;
  const OnListedFile& on_file_;
  CheckpointListing out_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

CheckpointListing ListCheckpoint(const std::string& dir, const OnListedFile& on_file) {
  return Lister(dir, on_file).Run();
}

}  // namespace baltoro
