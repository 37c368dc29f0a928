#include "support/noted_bits.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <fstream>

namespace baltoro::test {

void NoteBits(std::string_view what, std::span<const float> values) {
  const char* const path = std::getenv("BALTORO_TEST_BITS");
  if (path == nullptr) return;
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, a word at a time
  for (const float value : values) {
    hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3u;
  }
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  std::ofstream(path, std::ios::app) << fmt::format("{}.{} {} {} {:016x}\n", test.test_suite_name(),
                                                    test.name(), what, values.size(), hash);
}

}  // namespace baltoro::test
