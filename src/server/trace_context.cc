#include "server/trace_context.h"

#include <cstddef>

namespace baltoro {
namespace {

bool IsHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool IsZero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

}  // namespace

// version "-" trace id "-" parent id "-" flags; what a later version adds follows after another
// "-".
std::string_view TraceIdOf(std::string_view traceparent) {
  constexpr size_t kLength = 55;
  if (traceparent.size() < kLength) return "";
  const std::string_view version = traceparent.substr(0, 2), trace = traceparent.substr(3, 32),
                         parent = traceparent.substr(36, 16), flags = traceparent.substr(53, 2);
  if (!IsHex(version) || version == "ff" || !IsHex(trace) || !IsHex(parent) || !IsHex(flags)) {
    return "";
  }
  if (traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-') return "";
  if (IsZero(trace) || IsZero(parent)) return "";
  const std::string_view rest = traceparent.substr(kLength);
  if (!rest.empty() && (version == "00" || rest[0] != '-')) return "";
  return trace;
}

}  // namespace baltoro
