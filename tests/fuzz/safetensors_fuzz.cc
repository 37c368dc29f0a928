// The header of a safetensors file: the first 4 bytes say how much data would follow.

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t data_bytes = 0;
  if (size < sizeof(data_bytes)) return 0;
  std::memcpy(&data_bytes, data, sizeof(data_bytes));
  const std::string_view json(reinterpret_cast<const char*>(data) + sizeof(data_bytes),
                              size - sizeof(data_bytes));
  const auto entries = baltoro::ParseSafetensorsHeader(json, data_bytes);
  if (!entries.ok()) {
    BT_CHECK(!entries.status().message().empty());
    return 0;
  }
  // What was accepted tiles the data.
  uint64_t end = 0;
  for (const auto& entry : entries.value()) {
    uint64_t elements = 1;
    for (const int64_t dim : entry.shape) elements *= static_cast<uint64_t>(dim);
    BT_CHECK(entry.begin == end);
    BT_CHECK(entry.bytes == elements * static_cast<uint64_t>(baltoro::SizeOf(entry.dtype)));
    end += entry.bytes;
  }
  BT_CHECK(end == data_bytes);
  return 0;
}
