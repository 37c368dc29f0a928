#pragma once

// What this machine keeps in the 128 bytes of a CUtensorMap.

#include <cstdint>

namespace emu {

constexpr uint32_t kTensorMapMagic = 0x42544D31;

struct TensorMap {
  uint32_t magic;
  uint8_t element_bytes;
  uint8_t rank;
  uint8_t swizzle;  // 0 none, 1: 32, 2: 64, 3: 128 bytes
  uint8_t nan_fill;
  uint64_t base;
  uint64_t strides[4];  // bytes, of dimensions 1 and up
  uint32_t sizes[5];
  uint16_t box[5];
  uint16_t steps[5];
};
static_assert(sizeof(TensorMap) <= 128);

// Where a byte of shared memory lies under a swizzle: 16-byte pieces are exchanged by bits 7 and up
// of the address.
inline uint32_t Swizzled(uint32_t address, int swizzle) {
  const uint32_t bits = swizzle == 3 ? 7 : swizzle == 2 ? 3 : swizzle == 1 ? 1 : 0;
  return address ^ ((address >> 7 & bits) << 4);
}

}  // namespace emu
