#include "weights/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/file.h"
#include "base/json.h"

namespace baltoro {
namespace {

constexpr std::string_view kOuterPrefix = "language_model.";
constexpr std::string_view kLayers = "model.layers.";

Status InFile(const std::string& path, const Status& why) {
  return Status(why.code(), path + ": " + why.message());
}

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

bool NeverUsed(std::string_view name, int64_t layers) {
  for (const std::string_view end : {".rotary_emb.inv_freq", ".k_scale", ".v_scale"}) {
    if (name.ends_with(end)) return true;
  }
  if (!name.starts_with(kLayers)) return false;
  int64_t layer = -1;
  const char* digits = name.data() + kLayers.size();
  std::from_chars(digits, name.data() + name.size(), layer);
  return layer >= layers;  // multi-token prediction
}

// "model.layers.3.mlp.x" -> "model.layers.*.mlp.x"
std::string KindOf(std::string_view name) {
  std::string kind;
  for (const char c : name) {
    if (c < '0' || c > '9' || (!kind.empty() && kind.back() != '.' && kind.back() != '*')) {
      kind.push_back(c);
    } else if (kind.empty() || kind.back() != '*') {
      kind.push_back('*');
    }
  }
  return kind;
}

}  // namespace

std::string CanonicalName(std::string_view name) {
  if (!name.starts_with(kOuterPrefix)) return std::string(name);
  name.remove_prefix(kOuterPrefix.size());
  if (name.starts_with("model.") || name.starts_with("lm_head.")) return std::string(name);
  return "model." + std::string(name);
}

Checkpoint::~Checkpoint() {
  for (const File& file : files_) close(file.fd);
}

Result<Checkpoint> Checkpoint::Open(const std::string& dir) {
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  const std::string index = dir + "/model.safetensors.index.json";
  const std::string single = dir + "/model.safetensors";
  if (FileExists(index)) {
    BT_RETURN_IF_ERROR(checkpoint.AddIndexedFiles(index));
  } else if (FileExists(single)) {
    BT_RETURN_IF_ERROR(checkpoint.AddFile(single, [](const std::string&) { return true; }));
  } else {
    return Status(
        Code::kNotFound,
        dir + ": no weights: neither model.safetensors.index.json nor model.safetensors is there");
  }
  return checkpoint;
}

Status Checkpoint::AddIndexedFiles(const std::string& index_path) {
  BT_ASSIGN_OR_RETURN(const Json index, ReadJsonFile(index_path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return InvalidArgument(index_path + ": no weight_map object");
  }
  std::map<std::string, std::map<std::string, bool>> files;  // file -> its tensors -> seen
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get_ref<const std::string&>())) {
      return InvalidArgument(fmt::format("{}: tensor {}: no plain file name", index_path, name));
    }
    files[file.get_ref<const std::string&>()][name] = false;
  }
  for (auto& [file, names] : files) {
    const std::string path = dir_ + "/" + file;
    BT_RETURN_IF_ERROR(AddFile(path, [&wanted = names](const std::string& name) {
      const auto found = wanted.find(name);
      if (found == wanted.end()) return false;
      found->second = true;
      return true;
    }));
    for (const auto& [name, seen] : names) {
      if (!seen) {
        return InvalidArgument(
            fmt::format("{}: tensor {} is not in it, though the index says so", path, name));
      }
    }
  }
  return {};
}

Status Checkpoint::AddFile(const std::string& path,
                           const std::function<bool(const std::string& name)>& wanted) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kUnavailable;
    return Status(code, path + ": " + std::strerror(errno));
  }
  files_.push_back({.path = path, .fd = fd});
  struct stat info {};
  if (fstat(fd, &info) != 0) return Status(Code::kUnavailable, path + ": " + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path + ": not a regular file");
  auto header = ReadSafetensorsHeader(fd, static_cast<uint64_t>(info.st_size));
  if (!header.ok()) return InFile(path, header.status());

  for (SafetensorsEntry& entry : header.value().entries) {
    if (!wanted(entry.name)) continue;
    std::string name = CanonicalName(entry.name);
    if (!by_name_.emplace(name, tensors_.size()).second) {
      return InvalidArgument(fmt::format("{}: tensor {} is there twice", path, entry.name));
    }
    tensors_.push_back({.name = std::move(name),
                        .file = files_.size() - 1,
                        .dtype = entry.dtype,
                        .shape = std::move(entry.shape),
                        .offset = header.value().data_begin + entry.begin});
  }
  return {};
}

std::optional<SourceTensor> Checkpoint::Find(std::string_view name, const std::vector<int64_t>&) {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  Tensor& tensor = tensors_[found->second];
  tensor.used = true;
  return SourceTensor{
      .name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .handle = found->second};
}

Status Checkpoint::Read(const SourceTensor& tensor, int64_t row, TensorView out) const {
  BT_CHECK(tensor.handle < tensors_.size());
  const Tensor& stored = tensors_[tensor.handle];
  BT_CHECK(out.rank == 2 && out.contiguous() && out.dtype == stored.dtype);
  const int64_t rows = stored.shape.size() > 1 ? stored.shape[0] : 1;
  const int64_t width = stored.shape.empty() ? 1 : stored.shape.back();
  BT_CHECK(stored.shape.size() <= 2 && out.dim(1) == width);
  BT_CHECK(row >= 0 && out.dim(0) >= 0 && row + out.dim(0) <= rows);
  const int64_t row_bytes = width * SizeOf(stored.dtype);
  const File& file = files_[stored.file];
  const Status read = ReadAt(file.fd, stored.offset + static_cast<uint64_t>(row * row_bytes),
                             out.data, static_cast<size_t>(out.dim(0) * row_bytes));
  if (!read.ok()) {
    return Status(read.code(),
                  fmt::format("{}: tensor {}: {}", file.path, stored.name, read.message()));
  }
  return {};
}

std::map<std::string, int64_t> Checkpoint::UnusedKinds(int64_t layers) const {
  std::map<std::string, int64_t> kinds;
  for (const Tensor& tensor : tensors_) {
    if (!tensor.used && !NeverUsed(tensor.name, layers)) ++kinds[KindOf(tensor.name)];
  }
  return kinds;
}

}  // namespace baltoro
