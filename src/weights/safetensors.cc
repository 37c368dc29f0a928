#include "weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <unordered_set>

#include "base/file.h"
#include "base/json_scanner.h"
#include "disk/file_set.h"

namespace baltoro {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
constexpr size_t kRankMax = 8;
constexpr size_t kTensorsMax = 1'000'000;  // four times those of the largest model, in one file

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

// What a header says of one tensor.
struct StatedTensor {
  std::optional<std::string> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::array<int64_t, 2>> offsets;
};

class EntryReader {
 public:
  EntryReader(JsonScanner& json, const std::string& name) : json_(json), name_(name) {}

  Result<SafetensorsEntry> Read() {
    if (json_.Peek() != '{') return Bad("not an object");
    StatedTensor stated;
    json_.BeginObject();
    std::string key;
    while (json_.NextKey(key)) {
      bool again = false;
      if (key == "dtype") {
        again = stated.dtype.has_value();
        if (json_.Peek() != '"') return Bad("no dtype");
        json_.String(stated.dtype.emplace());
      } else if (key == "shape") {
        again = stated.shape.has_value();
        BT_RETURN_IF_ERROR(ReadShape(stated.shape.emplace()));
      } else if (key == "data_offsets") {
        again = stated.offsets.has_value();
        BT_RETURN_IF_ERROR(ReadOffsets(stated.offsets.emplace()));
      } else {
        json_.Skip();
      }
      if (again) return Bad(fmt::format("duplicate key \"{}\"", key));
    }
    BT_RETURN_IF_ERROR(json_.status());
    if (!stated.dtype) return Bad("no dtype");
    if (!stated.shape) return Bad("no shape");
    if (!stated.offsets) return Bad("no data_offsets of two numbers");
    return Checked(stated);
  }

 private:
  Status Bad(std::string_view why) const { return BadTensor(name_, why); }

  Status ReadShape(std::vector<int64_t>& shape) {
    if (json_.Peek() != '[') return Bad("no shape");
    json_.BeginArray();
    while (json_.NextElement()) {
      if (shape.size() == kRankMax) return Bad("more than 8 dimensions");
      if (!json_.Natural(shape.emplace_back())) return Bad("a dimension is not a number");
    }
    return json_.status();
  }

  Status ReadOffsets(std::array<int64_t, 2>& offsets) {
    if (json_.Peek() != '[') return Bad("no data_offsets of two numbers");
    json_.BeginArray();
    size_t count = 0;
    for (; json_.NextElement(); ++count) {
      if (count == offsets.size()) return Bad("no data_offsets of two numbers");
      if (!json_.Natural(offsets[count])) return Bad("data_offsets are not a range");
    }
    if (json_.ok() && count < offsets.size()) return Bad("no data_offsets of two numbers");
    return json_.status();
  }

  Result<SafetensorsEntry> Checked(StatedTensor& stated) const {
    const auto type = ParseDType(*stated.dtype);
    if (!type) return Bad(fmt::format("dtype {} is not known", stated.dtype->substr(0, 32)));
    int64_t bytes = SizeOf(*type);
    for (const int64_t dim : *stated.shape) {
      if (__builtin_mul_overflow(bytes, dim, &bytes)) return Bad("shape overflows");
    }
    const auto [begin, end] = *stated.offsets;
    if (begin > end) return Bad("data_offsets are not a range");
    if (end - begin != bytes) {
      return Bad(fmt::format("data_offsets span {} bytes, {} and shape make {}", end - begin,
                             NameOf(*type), bytes));
    }
    return SafetensorsEntry{.name = name_,
                            .dtype = *type,
                            .shape = std::move(*stated.shape),
                            .begin = static_cast<uint64_t>(begin),
                            .bytes = static_cast<uint64_t>(bytes)};
  }

  JsonScanner& json_;
  const std::string& name_;
};

Status CheckNames(const std::vector<SafetensorsEntry>& entries) {
  std::unordered_set<std::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    if (!names.insert(entry.name).second) {
      return InvalidArgument(fmt::format("header: duplicate key \"{}\"", entry.name.substr(0, 64)));
    }
  }
  return {};
}

Result<std::vector<SafetensorsEntry>> ReadEntries(std::string_view text) {
  JsonScanner json(text);
  if (json.Peek() != '{') return InvalidArgument("header: not a JSON object");
  std::vector<SafetensorsEntry> entries;
  json.BeginObject();
  std::string name;
  while (json.NextKey(name)) {
    if (name == "__metadata__") {
      json.Skip();
      continue;
    }
    if (entries.size() == kTensorsMax) {
      return InvalidArgument(fmt::format("header: more than {} tensors", kTensorsMax));
    }
    auto entry = EntryReader(json, name).Read();
    if (!json.ok()) break;
    if (!entry.ok()) return entry.status();
    entries.push_back(std::move(entry).value());
  }
  if (!json.ok() || !json.End()) return InvalidArgument("header: " + json.status().message());
  return entries;
}

// Sorts them by place, and refuses what does not tile the data.
Status CheckPlaces(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  BT_RETURN_IF_ERROR(CheckNames(entries));
  const auto by_place = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
  };
  if (!std::is_sorted(entries.begin(), entries.end(), by_place)) {
    std::stable_sort(entries.begin(), entries.end(), by_place);
  }
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
  return {};
}

// The JSON text behind its length.
Result<std::string> ReadText(int fd, uint64_t file_bytes) {
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
  return json;
}

}  // namespace

Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json,
                                                             uint64_t data_bytes) {
  BT_ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries, ReadEntries(json));
  BT_RETURN_IF_ERROR(CheckPlaces(entries, data_bytes));
  return entries;
}

Result<SafetensorsHeader> ReadSafetensorsHeader(int fd, uint64_t file_bytes) {
  BT_ASSIGN_OR_RETURN(const std::string json, ReadText(fd, file_bytes));
  SafetensorsHeader header;
  header.data_begin = sizeof(uint64_t) + json.size();
  BT_ASSIGN_OR_RETURN(header.entries, ParseSafetensorsHeader(json, file_bytes - header.data_begin));
  return header;
}

Result<SafetensorsHeader> ReadHeaderAlone(int fd, uint64_t file_bytes) {
  BT_ASSIGN_OR_RETURN(const std::string json, ReadText(fd, file_bytes));
  SafetensorsHeader header;
  header.data_begin = sizeof(uint64_t) + json.size();
  if (header.data_begin != file_bytes) {
    return InvalidArgument(fmt::format("header of {} bytes in a file of {}, which holds no more",
                                       json.size(), file_bytes));
  }
  BT_ASSIGN_OR_RETURN(header.entries, ReadEntries(json));
  uint64_t data_bytes = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    data_bytes = std::max(data_bytes, entry.begin + entry.bytes);  // both below 2^63
  }
  // So that WholeFileBytes is an offset, which is signed.
  if (data_bytes > kWeightFileBytesMax) {
    return InvalidArgument(
        fmt::format("header of a file of more than {} bytes, which none has", kWeightFileBytesMax));
  }
  BT_RETURN_IF_ERROR(CheckPlaces(header.entries, data_bytes));
  return header;
}

uint64_t WholeFileBytes(const SafetensorsHeader& header) {
  if (header.entries.empty()) return header.data_begin;
  return header.data_begin + header.entries.back().begin + header.entries.back().bytes;
}

Result<uint64_t> SizeByHeader(const std::string& path) {
  const std::string beside = path + kHeaderSuffix;
  BT_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(beside, kWeightFileBytesMax));
  const auto header = ReadHeaderAlone(file.fd(), file.bytes());
  if (!header.ok())
    return Status(header.status().code(), beside + ": " + header.status().message());
  return WholeFileBytes(header.value());
}

}  // namespace baltoro
