#include "fetch/media_url.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/percent.h"

namespace baltoro {
namespace {

constexpr size_t kLengthMax = 8192;

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// What no URL has. Bytes of UTF-8 become what they should have been.
Result<std::string> Cleaned(const std::string& url) {
  if (url.size() > kLengthMax) {
    return InvalidArgument(fmt::format("the URL is longer than {} characters", kLengthMax));
  }
  std::string out;
  for (const char c : url) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == 0x7f || c == '\\') {
      return InvalidArgument(
          "the URL has a space, a backslash or a control character; percent-encode it");
    }
    if (byte < 0x80) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
  return out;
}

std::string PartOf(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return "";
  std::string out(text);
  curl_free(text);
  return out;
}

// A name, or an address in its one usual form.
bool IsPlainHost(std::string_view host) {
  if (host.starts_with('[')) {
    in6_addr six;
    return host.size() > 2 && host.ends_with(']') &&
           inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), &six) == 1;
  }
  const auto in_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  constexpr size_t kNameMax = 253;
  if (host.empty() || host.size() > kNameMax || host.starts_with('.') || host.ends_with('.') ||
      host.find("..") != host.npos || !std::all_of(host.begin(), host.end(), in_name)) {
    return false;
  }
  // No name ends in a number: what does is an address, in whatever base.
  const std::string_view last = host.substr(host.rfind('.') + 1);
  const bool number = last.starts_with("0x") || last.find_first_not_of("0123456789") == last.npos;
  in_addr four;
  return !number || inet_pton(AF_INET, std::string(host).c_str(), &four) == 1;
}

Status NoUrl() {
  return InvalidArgument("the URL is malformed");
}

}  // namespace

Result<WebUrl> ReadWebUrl(const std::string& url) {
  BT_ASSIGN_OR_RETURN(const std::string clean, Cleaned(url));
  const size_t scheme_end = clean.find("://");
  if (scheme_end == clean.npos) return NoUrl();
  const std::string scheme = Lower(std::string_view(clean).substr(0, scheme_end));
  if (scheme != "http" && scheme != "https") {
    return InvalidArgument("the URL is of another scheme than http and https");
  }

  WebUrl out;
  out.parsed.reset(curl_url());
  if (out.parsed == nullptr) return Status(Code::kResourceExhausted, "no memory for a connection");
  const CURLUcode code =
      curl_url_set(out.parsed.get(), CURLUPART_URL, clean.c_str(), CURLU_DISALLOW_USER);
  if (code == CURLUE_USER_NOT_ALLOWED) {
    return InvalidArgument("the URL has a user name or a password, which are not sent");
  }
  if (code != CURLUE_OK) return NoUrl();
  const std::string host = Lower(PartOf(out.parsed.get(), CURLUPART_HOST));
  // As it stands in the text, or somebody else would read another one there.
  const std::string rest = Lower(std::string_view(clean).substr(scheme_end + 3));
  const bool as_written =
      rest.starts_with(host) &&
      (rest.size() == host.size() || std::string_view(":/?#").find(rest[host.size()]) < 4);
  if (!IsPlainHost(host) || !as_written) {
    return InvalidArgument(
        "the URL's host must be a name, four decimal numbers, or an IPv6 address in brackets");
  }
  const std::string port = PartOf(out.parsed.get(), CURLUPART_PORT);
  std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (out.port < 1 || out.port > 65535) return NoUrl();
  out.https = scheme == "https";
  out.host = host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
  return out;
}

Result<std::string> ReadFileUrl(const std::string& url) {
  constexpr std::string_view kScheme = "file:";
  BT_ASSIGN_OR_RETURN(const std::string clean, Cleaned(url));
  if (!Lower(clean).starts_with(kScheme)) return NoUrl();
  std::string_view rest(clean);
  rest.remove_prefix(kScheme.size());
  if (rest.starts_with("//")) {
    const size_t path = std::min(rest.find('/', 2), rest.size());
    const std::string host = Lower(rest.substr(2, path - 2));
    if (!host.empty() && host != "localhost") {
      return InvalidArgument("the URL names a host; a file is file:///path/of/the/file");
    }
    rest.remove_prefix(path);
  }
  if (rest.find_first_of("?#") != rest.npos) {
    return InvalidArgument("the URL has a ? or #, which in the name of a file is %3F or %23");
  }
  const std::optional<std::string> path = PercentDecode(rest);
  if (!path || !path->starts_with('/') || path->find('\0') != path->npos) return NoUrl();
  for (size_t at = 0; at < path->size();) {
    const size_t end = std::min(path->find('/', at + 1), path->size());
    const std::string_view part = std::string_view(*path).substr(at + 1, end - at - 1);
    if (part.empty() || part == "." || part == "..") {
      return InvalidArgument("the URL's path has an empty part, \".\" or \"..\"");
    }
    at = end;
  }
  return *path;
}

}  // namespace baltoro
