#include "weights/checkpoint.h"

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "weights/shard_index.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

// Elements of a row, as Read counts rows.
int64_t WidthOf(const std::vector<int64_t>& shape) {
  if (shape.size() == 1) return shape[0];
  int64_t width = 1;
  for (size_t i = 1; i < shape.size(); ++i) width *= shape[i];
  return width;
}

constexpr std::string_view kOuterPrefix = "language_model.";

Status InFile(const std::string& path, const Status& why) {
  return Status(why.code(), path + ": " + why.message());
}

}  // namespace

bool IsNeverUsed(std::string_view name, int64_t layers) {
  for (const std::string_view end : {".rotary_emb.inv_freq", ".k_scale", ".v_scale"}) {
    if (name.ends_with(end)) return true;
  }
  return LayerOf(name) >= layers;  // multi-token prediction
}

std::string CanonicalName(std::string_view name) {
  if (!name.starts_with(kOuterPrefix)) return std::string(name);
  name.remove_prefix(kOuterPrefix.size());
  if (name.starts_with("model.") || name.starts_with("lm_head.")) return std::string(name);
  return "model." + std::string(name);
}

Result<Checkpoint> Checkpoint::Open(const std::string& dir) {
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  BT_ASSIGN_OR_RETURN(const WeightFiles files, FindWeightFiles(dir));
  if (!files.index.empty()) {
    BT_RETURN_IF_ERROR(checkpoint.AddIndexedFiles(files.index));
  } else {
    BT_RETURN_IF_ERROR(checkpoint.AddFile(files.single, [](const std::string&) { return true; }));
  }
  return checkpoint;
}

Status Checkpoint::AddIndexedFiles(const std::string& index_path) {
  BT_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(index_path));
  const auto index = ParseShardIndex(json);
  if (!index.ok()) return InFile(index_path, index.status());
  for (const auto& [file, names] : index.value().files) {
    const std::string path = dir_ + "/" + file;
    std::map<std::string, bool> seen;
    for (const std::string& name : names) seen[name] = false;
    const Status added = AddFile(path, [&seen](const std::string& name) {
      const auto found = seen.find(name);
      if (found == seen.end()) return false;
      found->second = true;
      return true;
    });
    if (added.code() == Code::kNotFound) {
      return Status(added.code(), fmt::format("{}; {} names it: the download is not complete",
                                              added.message(), index_path));
    }
    BT_RETURN_IF_ERROR(added);
    for (const auto& [name, there] : seen) {
      if (!there) {
        return InvalidArgument(
            fmt::format("{}: tensor {} is not in it, though the index says so", path, name));
      }
    }
  }
  return {};
}

Status Checkpoint::AddFile(const std::string& path,
                           const std::function<bool(const std::string& name)>& wanted) {
  const std::string beside = path + kHeaderSuffix;
  const bool alone = !FileExists(path) && FileExists(beside);
  BT_ASSIGN_OR_RETURN(const size_t file,
                      alone ? files_->OpenBeginning(path, beside) : files_->Open(path));
  const int fd = files_->fd(file);
  auto header = alone ? ReadHeaderAlone(fd, files_->bytes(file))
                      : ReadSafetensorsHeader(fd, files_->bytes(file));
  if (!header.ok()) return InFile(path, header.status());

  for (SafetensorsEntry& entry : header.value().entries) {
    if (!wanted(entry.name)) continue;
    std::string name = CanonicalName(entry.name);
    if (!by_name_.emplace(name, tensors_.size()).second) {
      return InvalidArgument(fmt::format("{}: tensor {} is there twice", path, entry.name));
    }
    tensors_.push_back({.name = std::move(name),
                        .stored_name = std::move(entry.name),
                        .file = file,
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
  const int64_t width = WidthOf(stored.shape);
  BT_CHECK(out.dim(1) == width);
  BT_CHECK(row >= 0 && out.dim(0) >= 0 && row + out.dim(0) <= rows);
  const int64_t row_bytes = width * SizeOf(stored.dtype);
  return ReadBytes(tensor, static_cast<uint64_t>(row * row_bytes), out.data,
                   static_cast<size_t>(out.dim(0) * row_bytes));
}

Status Checkpoint::ReadBytes(const SourceTensor& tensor,
                             uint64_t offset,
                             void* out,
                             size_t bytes) const {
  BT_CHECK(tensor.handle < tensors_.size());
  const Tensor& stored = tensors_[tensor.handle];
  const Status read = files_->Read(RangeOf(tensor, offset, bytes), out);
  if (!read.ok()) {
    return Status(read.code(), fmt::format("{}: tensor {}: {}", files_->path(stored.file),
                                           stored.name, read.message()));
  }
  return {};
}

FileRange Checkpoint::RangeOf(const SourceTensor& tensor, uint64_t offset, uint64_t bytes) const {
  BT_CHECK(tensor.handle < tensors_.size());
  const Tensor& stored = tensors_[tensor.handle];
  return {.file = stored.file, .offset = stored.offset + offset, .bytes = bytes};
}

void Checkpoint::AddRanges(const SourceTensor& tensor,
                           int64_t row,
                           int64_t rows,
                           std::vector<FileRange>& out) const {
  const int64_t row_bytes = WidthOf(tensor.shape) * SizeOf(tensor.dtype);
  out.push_back(RangeOf(tensor, static_cast<uint64_t>(row * row_bytes),
                        static_cast<uint64_t>(rows * row_bytes)));
}

std::string Checkpoint::FileOf(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? "" : files_->path(tensors_[found->second].file);
}

std::vector<CheckpointTensor> Checkpoint::tensors() const {
  std::vector<CheckpointTensor> out;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& t = tensors_[i];
    out.push_back({.stored_name = t.stored_name,
                   .tensor = {.name = t.name, .dtype = t.dtype, .shape = t.shape, .handle = i}});
  }
  return out;
}

std::map<std::string, int64_t> Checkpoint::UnusedKinds(int64_t layers) const {
  std::map<std::string, int64_t> kinds;
  for (const Tensor& tensor : tensors_) {
    if (!tensor.used && !IsNeverUsed(tensor.name, layers)) ++kinds[KindOf(tensor.name)];
  }
  return kinds;
}

}  // namespace baltoro
