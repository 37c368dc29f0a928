#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>

namespace baltoro::test {  // not baltoro::testing, which would hide GoogleTest's namespace

// The folder of the real Kimi K2.5 tokenizer and chat template:
// $BALTORO_TEST_DATA/kimi-k2.5-tokenizer, else beside the checkout in ../shared/data. Empty when
// absent; such tests then skip and say so.
std::string KimiTokenizerDir();

struct Tolerance {
  double nmse;     // sum (got - want)^2 / sum want^2
  double max_abs;  // largest single deviation
};
inline constexpr Tolerance kF32{.nmse = 1e-10, .max_abs = 1e-3};
inline constexpr Tolerance kBf16{.nmse = 1e-4, .max_abs = 0.1};

// EXPECT_TRUE(Near(got, want, kBf16)) reports NaNs, the worst element and its index.
::testing::AssertionResult Near(std::span<const float> got,
                                std::span<const float> want,
                                Tolerance tolerance);

// A new folder under the system's temporary one, removed with its contents at the end of the scope.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace baltoro::test
