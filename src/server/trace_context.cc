#include "server/trace_context.h"

#include <cstddef>

namespace baltoro {
namespace {

constexpr size_t kStateBytesMax = 512;  // what the standard asks to be passed on
constexpr int kStateMembersMax = 32;

bool IsHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool IsZero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

// Members "key=value" with commas between; empty ones are allowed.
bool IsState(std::string_view text) {
  if (text.size() > kStateBytesMax) return false;
  for (int members = 0; !text.empty(); ++members) {
    const size_t end = text.find(',');
    std::string_view member = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (members == kStateMembersMax) return false;
    while (!member.empty() && (member.front() == ' ' || member.front() == '\t')) {
      member.remove_prefix(1);
    }
    if (member.empty()) continue;
    const size_t equals = member.find('=');
    if (equals == 0 || equals == member.npos) return false;
    for (const char c : member) {
      if ((c < ' ' && c != '\t') || c > '~') return false;
    }
  }
  return true;
}

}  // namespace

// version "-" trace id "-" parent id "-" flags; what a later version adds follows after another
// "-".
TraceContext ReadTraceContext(std::string_view traceparent, std::string_view tracestate) {
  constexpr size_t kLength = 55;
  if (traceparent.size() < kLength) return {};
  const std::string_view version = traceparent.substr(0, 2), trace = traceparent.substr(3, 32),
                         parent = traceparent.substr(36, 16), flags = traceparent.substr(53, 2);
  if (!IsHex(version) || version == "ff" || !IsHex(trace) || !IsHex(parent) || !IsHex(flags)) {
    return {};
  }
  if (traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-') return {};
  if (IsZero(trace) || IsZero(parent)) return {};
  const std::string_view rest = traceparent.substr(kLength);
  if (!rest.empty() && (version == "00" || rest[0] != '-')) return {};
  const char low = flags[1];  // its lowest bit says whether the trace is recorded
  return {.trace_id = std::string(trace),
          .parent_id = std::string(parent),
          .state = std::string(IsState(tracestate) ? tracestate : ""),
          .sampled = ((low <= '9' ? low - '0' : low - 'a' + 10) & 1) == 1};
}

}  // namespace baltoro
