#include "weights/safetensors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/json.h"

namespace baltoro {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
constexpr size_t kRankMax = 8;

std::optional<DType> ParseDType(std::string_view name) {
  for (const DType type : {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E4M3, DType::kI64,
                           DType::kI32, DType::kI8, DType::kU8, DType::kBool}) {
    if (NameOf(type) == name) return type;
  }
  return std::nullopt;
}

Status BadTensor(std::string_view name, std::string_view why) {
  return InvalidArgument(fmt::format("tensor {}: {}", name, why));
}

// A value that is an integer in [0, 2^63).
std::optional<int64_t> Natural(const SortedJson& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return std::nullopt;
  }
  const auto number = value.get<int64_t>();
  return number >= 0 ? std::optional<int64_t>(number) : std::nullopt;
}

Result<SafetensorsEntry> ParseEntry(const std::string& name, const SortedJson& json) {
  SafetensorsEntry entry;
  entry.name = name;
  if (!json.is_object()) return BadTensor(name, "not an object");
  const auto dtype = json.find("dtype");
  const auto shape = json.find("shape");
  const auto offsets = json.find("data_offsets");
  if (dtype == json.end() || !dtype->is_string()) return BadTensor(name, "no dtype");
  if (shape == json.end() || !shape->is_array()) return BadTensor(name, "no shape");
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2) {
    return BadTensor(name, "no data_offsets of two numbers");
  }
  const auto type = ParseDType(dtype->get_ref<const std::string&>());
  if (!type) {
    return BadTensor(name, fmt::format("dtype {} is not known",
                                       dtype->get_ref<const std::string&>().substr(0, 32)));
  }
  entry.dtype = *type;

  if (shape->size() > kRankMax) return BadTensor(name, "more than 8 dimensions");
  int64_t bytes = SizeOf(*type);
  for (const SortedJson& value : *shape) {
    const auto dim = Natural(value);
    if (!dim) return BadTensor(name, "a dimension is not a number");
    if (__builtin_mul_overflow(bytes, *dim, &bytes)) return BadTensor(name, "shape overflows");
    entry.shape.push_back(*dim);
  }
  const auto begin = Natural((*offsets)[0]);
  const auto end = Natural((*offsets)[1]);
  if (!begin || !end || *begin > *end) return BadTensor(name, "data_offsets are not a range");
  if (*end - *begin != bytes) {
    return BadTensor(name, fmt::format("data_offsets span {} bytes, {} and shape make {}",
                                       *end - *begin, NameOf(*type), bytes));
  }
  entry.begin = static_cast<uint64_t>(*begin);
  entry.bytes = static_cast<uint64_t>(bytes);
  return entry;
}

}  // namespace

Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json,
                                                             uint64_t data_bytes) {
  auto parsed = ParseSortedJson(json, {.depth = 8, .nodes = 20'000'000});
  if (!parsed.ok()) return InvalidArgument("header: " + parsed.status().message());
  const SortedJson& root = parsed.value();
  if (!root.is_object()) return InvalidArgument("header: not a JSON object");

  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") continue;
    BT_ASSIGN_OR_RETURN(SafetensorsEntry entry, ParseEntry(name, value));
    entries.push_back(std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
  });
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < end) return BadTensor(entry.name, "overlaps another tensor");
    if (entry.begin > end) {
      return BadTensor(entry.name,
                       fmt::format("{} bytes before it belong to no tensor", entry.begin - end));
    }
    end = entry.begin + entry.bytes;  // both below 2^63
    if (end > data_bytes) {
      return BadTensor(entry.name,
                       fmt::format("ends at byte {} of the data, which has {}", end, data_bytes));
    }
  }
  if (end != data_bytes) {
    return InvalidArgument(
        fmt::format("{} bytes at the end belong to no tensor", data_bytes - end));
  }
  return entries;
}

Status ReadAt(int fd, uint64_t offset, void* out, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        pread(fd, static_cast<char*>(out) + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status(Code::kUnavailable, std::strerror(errno));
    if (got == 0) {
      return Status(Code::kUnavailable, fmt::format("the file ended at byte {}", offset + done));
    }
    done += static_cast<size_t>(got);
  }
  return {};
}

Result<SafetensorsHeader> ReadSafetensorsHeader(int fd, uint64_t file_bytes) {
  uint64_t length = 0;
  if (file_bytes < sizeof(length)) return InvalidArgument("shorter than 8 bytes");
  BT_RETURN_IF_ERROR(ReadAt(fd, 0, &length, sizeof(length)));
  if (length > kHeaderBytesMax || length > file_bytes - sizeof(length)) {
    return InvalidArgument(
        fmt::format("header of {} bytes in a file of {}: not a safetensors file, or cut short",
                    length, file_bytes));
  }
  std::string json(length, '\0');
  BT_RETURN_IF_ERROR(ReadAt(fd, sizeof(length), json.data(), json.size()));
  SafetensorsHeader header;
  header.data_begin = sizeof(length) + length;
  BT_ASSIGN_OR_RETURN(header.entries, ParseSafetensorsHeader(json, file_bytes - header.data_begin));
  return header;
}

}  // namespace baltoro
