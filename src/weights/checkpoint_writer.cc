#include "weights/checkpoint_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/json.h"

namespace baltoro {
namespace {

Status SystemError(const std::string& path) {
  const Code code =
      errno == ENOSPC || errno == EDQUOT ? Code::kResourceExhausted : Code::kUnavailable;
  return Status(code, path + ": " + std::strerror(errno));
}

int64_t BytesOf(const OutputTensor& tensor) {
  int64_t bytes = SizeOf(tensor.dtype);
  for (const int64_t dim : tensor.shape) bytes *= dim;
  return bytes;
}

Status WriteAll(int fd, const std::string& path, int64_t offset, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t done = pwrite(fd, data, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return SystemError(path);
    data += done;
    offset += done;
    bytes -= static_cast<size_t>(done);
  }
  return {};
}

// Members of each file.
std::vector<std::vector<size_t>> CutIntoShards(const std::vector<OutputTensor>& tensors,
                                               int64_t shard_bytes) {
  std::vector<std::vector<size_t>> shards;
  int64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = BytesOf(tensors[i]);
    if (shards.empty() || (filled > 0 && filled + bytes > shard_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(i);
    filled += bytes;
  }
  // Wide elements first: every tensor then starts at a multiple of its element's size.
  for (auto& members : shards) {
    std::stable_sort(members.begin(), members.end(), [&](size_t a, size_t b) {
      return SizeOf(tensors[a].dtype) > SizeOf(tensors[b].dtype);
    });
  }
  return shards;
}

}  // namespace

Status WriteWholeFile(const std::string& path, std::string_view text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError(path);
  Status status = WriteAll(fd, path, 0, text.data(), text.size());
  if (status.ok() && fsync(fd) != 0) status = SystemError(path);
  close(fd);
  return status;
}

CheckpointWriter::CheckpointWriter(CheckpointWriter&& other) noexcept
    : dir_(std::move(other.dir_)),
      stem_(std::move(other.stem_)),
      tensors_(std::move(other.tensors_)),
      places_(std::move(other.places_)),
      files_(std::exchange(other.files_, {})),
      total_bytes_(other.total_bytes_) {}

CheckpointWriter::~CheckpointWriter() {
  for (const File& file : files_) close(file.fd);
}

Result<CheckpointWriter> CheckpointWriter::Create(const std::string& dir,
                                                  const std::string& stem,
                                                  std::vector<OutputTensor> tensors,
                                                  int64_t shard_bytes) {
  CheckpointWriter writer;
  writer.dir_ = dir;
  writer.stem_ = stem;
  writer.tensors_ = std::move(tensors);
  writer.places_.resize(writer.tensors_.size());
  const auto shards = CutIntoShards(writer.tensors_, shard_bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    BT_RETURN_IF_ERROR(writer.CreateFile(
        fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, shards.size()), shards[i]));
  }
  return writer;
}

Status CheckpointWriter::CreateFile(const std::string& name, const std::vector<size_t>& members) {
  const std::string path = dir_ + "/" + name;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError(path);
  files_.push_back({.name = name, .fd = fd});

  std::string text = R"({"__metadata__":{"format":"pt"})";
  int64_t data = 0;
  for (const size_t i : members) {
    const OutputTensor& tensor = tensors_[i];
    const int64_t end = data + BytesOf(tensor);
    text += ',';
    AppendJsonString(text, tensor.name);
    text += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        NameOf(tensor.dtype), fmt::join(tensor.shape, ","), data, end);
    places_[i] = {.file = files_.size() - 1, .offset = data};
    data = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  const uint64_t length = text.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  bytes += text;
  for (const size_t i : members) places_[i].offset += std::ssize(bytes);
  total_bytes_ += data;
  BT_RETURN_IF_ERROR(WriteAll(fd, path, 0, bytes.data(), bytes.size()));
  if (ftruncate(fd, static_cast<off_t>(std::ssize(bytes) + data)) != 0) return SystemError(path);
  return {};
}

Status CheckpointWriter::Write(size_t tensor,
                               int64_t offset,
                               const void* data,
                               size_t bytes) const {
  BT_CHECK(tensor < tensors_.size() && offset >= 0 &&
           offset + static_cast<int64_t>(bytes) <= BytesOf(tensors_[tensor]));
  const Place& place = places_[tensor];
  const File& file = files_[place.file];
  return WriteAll(file.fd, dir_ + "/" + file.name, place.offset + offset,
                  static_cast<const char*>(data), bytes);
}

Status CheckpointWriter::Finish() {
  for (const File& file : files_) {
    if (fsync(file.fd) != 0) return SystemError(dir_ + "/" + file.name);
  }
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes_);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    text += i == 0 ? "\n    " : ",\n    ";
    AppendJsonString(text, tensors_[i].name);
    text += ": ";
    AppendJsonString(text, files_[places_[i].file].name);
  }
  text += "\n  }\n}\n";
  return WriteWholeFile(dir_ + "/" + stem_ + ".safetensors.index.json", text);
}

}  // namespace baltoro
