#include "base/percent.h"

namespace baltoro {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> PercentDecode(std::string_view written) {
  std::string out;
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i] != '%') {
      out.push_back(written[i]);
      continue;
    }
    const int high = i + 3 <= written.size() ? HexDigit(written[i + 1]) : -1;
    const int low = i + 3 <= written.size() ? HexDigit(written[i + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

}  // namespace baltoro
