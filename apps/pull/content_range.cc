#include "pull/content_range.h"

#include <fmt/format.h>

#include <charconv>

namespace baltoro {

ContentRange ParseContentRange(std::string_view text) {
  const auto number = [](std::string_view digits) -> int64_t {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool good = error == std::errc() && end == digits.data() + digits.size() && value >= 0;
    return good ? value : -1;
  };
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return {};
  text.remove_prefix(kUnit.size());
  const size_t dash = text.find('-'), slash = text.find('/');
  if (dash == text.npos || slash == text.npos || dash > slash) return {};
  return {number(text.substr(0, dash)), number(text.substr(slash + 1))};
}

const std::string& EtagOf(const HttpHead& head) {
  return head.linked_etag.empty() ? head.etag : head.linked_etag;
}

HeadCheck CheckHead(const HttpHead& head, const ExpectedAnswer& expected) {
  const auto differs = [&](int64_t bytes) {
    return HeadCheck{
        Status(Code::kUnavailable, fmt::format("{}: {} has {} bytes of it, the listing says {}",
                                               expected.path, head.host, bytes, expected.bytes))};
  };
  const std::string& etag = EtagOf(head);
  if (!expected.etag.empty() && !etag.empty() && etag != expected.etag) {
    return {.problem = InvalidArgument("it has changed on the server (ETag)"), .anew = true};
  }
  if (!expected.ranged) {
    const bool wrong = head.content_length >= 0 && head.content_length != expected.bytes;
    return wrong ? differs(head.content_length) : HeadCheck{};
  }
  if (head.status != 206) {
    return {.problem = InvalidArgument(fmt::format("{} ignores Range", head.host)), .anew = true};
  }
  const ContentRange range = ParseContentRange(head.content_range);
  if (range.begin != expected.begin) {
    return {.problem = Status(
                Code::kUnavailable,
                fmt::format("{}: {} sent other bytes than were asked for (Content-Range: {})",
                            expected.path, head.host, head.content_range))};
  }
  if (range.total >= 0 && range.total != expected.bytes) return differs(range.total);
  return {};
}

}  // namespace baltoro
