#include "grammar/json_schema_format.h"

#include <algorithm>
#include <array>

#include "grammar/regex.h"

namespace baltoro {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr std::string_view kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

// A label has at most 63 characters and a name at most 253.
constexpr std::string_view kLabel = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
// The same without a bound, for where the length of the whole name is counted.
constexpr std::string_view kNameOfAnyLength =
    "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*";
constexpr int64_t kNameLength = 63;
constexpr std::string_view kMailboxOfAnyLength =
    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*";
constexpr int64_t kMailboxLength = 64;
constexpr std::string_view kScheme = "[a-zA-Z][a-zA-Z0-9+.-]*";
constexpr int64_t kSchemeLength = 16;

std::string Host() {
  const std::string label(kLabel);
  return label + "(\\." + label + ")*";
}

constexpr std::string_view kPathChar = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";

std::string Date() {
  const std::string year = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
  const std::string day =
      "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
      "02-(0[1-9]|1[0-9]|2[0-8]))";
  const std::string by_four = "(0[48]|[2468][048]|[13579][26])";
  return "(" + year + "-" + day + "|([0-9]{2}" + by_four + "|" + by_four + "00)-02-29)";
}

std::string Email() {
  return std::string(kMailboxOfAnyLength) + "@" + Host();
}

std::string Ipv4() {
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return byte + "(\\." + byte + "){3}";
}

std::string Ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}";
  std::string out =
      "((" + group + ":){7}" + group + "|::|(" + group + ":){1,7}:|:(:" + group + "){1,7}";
  // `left` groups before the "::" and at most 7 in all.
  for (int left = 1; left <= 6; ++left) {
    out += "|(" + group + ":){" + std::to_string(left) + "}(:" + group + "){1," +
           std::to_string(7 - left) + "}";
  }
  return out + ")";
}

std::string AfterPath() {
  const std::string chars = "(" + std::string(kPathChar) + "|[/?])*";
  return "(\\?" + chars + ")?(#" + chars + ")?";
}

// Behind the scheme. A name in an authority has no bound, unlike one of the Internet.
std::string AfterScheme() {
  const std::string path_char(kPathChar);
  const std::string authority = "//(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})+@)?" +
                                std::string(kNameOfAnyLength) + "(:[0-9]{1,5})?(/" + path_char +
                                "*)*";
  return ":(" + authority + "|/?" + path_char + "+(/" + path_char + "*)*)" + AfterPath();
}

std::string Uri() {
  return std::string(kScheme) + AfterScheme();
}

std::string UriReference() {
  const std::string path_char(kPathChar);
  return "(" + Uri() + "|(/(" + path_char + "+(/" + path_char + "*)*)?)?" + AfterPath() + ")";
}

constexpr std::string_view kPointer = "(/([^~/]|~[01])*)*";
constexpr std::string_view kDurationTime =
    "T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S)";

std::string Duration() {
  const std::string n = "[0-9]{1,6}";
  const std::string time(kDurationTime);
  return "P(" + n + "W|(" + n + "Y(" + n + "M(" + n + "D)?)?|" + n + "M(" + n + "D)?|" + n + "D)(" +
         time + ")?|" + time + ")";
}

bool IsEmail(std::string_view format) {
  return format == "email" || format == "idn-email";
}

bool IsHostname(std::string_view format) {
  return format == "hostname" || format == "idn-hostname";
}

bool IsUri(std::string_view format) {
  return format == "uri" || format == "iri" || format == "url";
}

}  // namespace

std::optional<std::string> FormatPattern(std::string_view format) {
  if (format == "date") return Date();
  if (format == "time") return std::string(kTime);
  if (format == "date-time") return Date() + "T" + std::string(kTime);
  if (format == "duration") return Duration();
  if (IsEmail(format)) return Email();
  if (IsHostname(format)) return Host();
  if (format == "ipv4") return Ipv4();
  if (format == "ipv6") return Ipv6();
  if (format == "uuid") {
    return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
  }
  if (IsUri(format)) return Uri();
  if (format == "uri-reference" || format == "iri-reference") return UriReference();
  if (format == "json-pointer") return std::string(kPointer);
  if (format == "relative-json-pointer") {
    return "(0|[1-9][0-9]{0,5})(#|" + std::string(kPointer) + ")";
  }
  return std::nullopt;
}

std::optional<Expr> AddFormat(JsonText& text, std::string_view format) {
  GrammarBuilder& builder = text.builder();
  // The patterns are those above, and none of their characters is spelled in another way in JSON.
  const auto add = [&](std::string_view pattern) {
    return AddRegex(builder, pattern, {.anchored = true}).value();
  };
  const auto up_to = [&](std::string_view pattern, int64_t length) {
    return builder.OfLength(add(pattern), text.PlainCharacter(), 0, length);
  };
  if (IsHostname(format)) return up_to(kNameOfAnyLength, kNameLength);
  std::vector<Expr> parts;
  if (IsEmail(format)) {
    parts = {up_to(kMailboxOfAnyLength, kMailboxLength), builder.Literal("@"),
             up_to(kNameOfAnyLength, kNameLength)};
  } else if (IsUri(format)) {
    parts = {up_to(kScheme, kSchemeLength), add(AfterScheme())};
  } else {
    return std::nullopt;
  }
  return builder.Sequence(parts);
}

bool IsFormatHint(std::string_view format) {
  constexpr std::array<std::string_view, 18> kHints = {
      "int8",  "int16",  "int32", "int64",  "uint",     "uint8",   "uint16", "uint32", "uint64",
      "float", "double", "byte",  "binary", "password", "decimal", "text",   "string", "markdown"};
  return std::find(kHints.begin(), kHints.end(), format) != kHints.end();
}

}  // namespace baltoro
