#include "support/support.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>

namespace baltoro::test {

std::string KimiTokenizerDir() {
  namespace fs = std::filesystem;
  const char* named = std::getenv("BALTORO_TEST_DATA");
  for (const fs::path& root :
       {fs::path(named != nullptr ? named : ""), fs::path("../shared/data")}) {
    const fs::path dir = root / "kimi-k2.5-tokenizer";
    if (!root.empty() && fs::exists(dir / "tiktoken.model")) return dir.string();
  }
  return "";
}

::testing::AssertionResult Near(std::span<const float> got,
                                std::span<const float> want,
                                Tolerance tolerance) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << "sizes " << got.size() << " and " << want.size();
  }
  double error = 0;
  double norm = 0;
  double worst = 0;
  size_t worst_at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) {
      return ::testing::AssertionFailure() << "element " << i << " is " << got[i];
    }
    const double difference = std::abs(double{got[i]} - double{want[i]});
    error += difference * difference;
    norm += double{want[i]} * double{want[i]};
    if (difference > worst) {
      worst = difference;
      worst_at = i;
    }
  }
  const double nmse = norm > 0 ? error / norm : error;
  if (nmse <= tolerance.nmse && worst <= tolerance.max_abs) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "nmse " << nmse << " (limit " << tolerance.nmse << "), worst " << worst << " (limit "
         << tolerance.max_abs << ") at " << worst_at << ": got "
         << (got.empty() ? 0.f : got[worst_at]) << ", want "
         << (want.empty() ? 0.f : want[worst_at]);
}

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "baltoro-XXXXXX").string();
  path_ = mkdtemp(pattern.data());
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace baltoro::test
