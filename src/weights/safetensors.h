#pragma once

// The header of a safetensors file: 8 bytes of little-endian length, a JSON object, raw data.
// Everything in it is checked here, because every later read trusts it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace baltoro {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t bytes = 0;
};

struct SafetensorsHeader {
  uint64_t data_begin = 0;                // bytes from the start of the file
  std::vector<SafetensorsEntry> entries;  // by position
};

// `json` is the header's text, `data_bytes` the length of what follows it. Tensors must tile the
// data: overlaps, holes and leftovers are refused. Errors name the tensor.
Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json,
                                                             uint64_t data_bytes);

// Reads the header of an open file of `file_bytes`. Errors do not name the file.
Result<SafetensorsHeader> ReadSafetensorsHeader(int fd, uint64_t file_bytes);

// Beside a missing "x.safetensors", "x.safetensors.header" holds its first bytes up to the data: of
// a file that another node reads. Tensors and sizes are known from it, numbers are not.
inline constexpr const char* kHeaderSuffix = ".header";

// Reads such a file of `file_bytes`.
Result<SafetensorsHeader> ReadHeaderAlone(int fd, uint64_t file_bytes);

// The size of the whole file that a header is of.
uint64_t WholeFileBytes(const SafetensorsHeader& header);

// The bytes of the whole file "x.safetensors" that only its header is here of; errors name it.
Result<uint64_t> SizeByHeader(const std::string& path);

}  // namespace baltoro
