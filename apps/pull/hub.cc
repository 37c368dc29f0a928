#include "pull/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "terminal/safe_text.h"

namespace baltoro {
namespace {

constexpr double kWaitMax = 60, kAskedWaitMax = 300;
constexpr size_t kTokenBytesMax = 4096;

Result<std::string> TokenOf(const PullCommand& command) {
  std::string token = command.token;
  const HubPlaces& places = command.places;
  if (token.empty()) token = command.modelscope ? places.modelscope_token : places.hf_token;
  if (token.empty() && !command.modelscope && FileExists(places.hf_token_file)) {
    BT_ASSIGN_OR_RETURN(token, ReadFile(places.hf_token_file, kTokenBytesMax));
  }
  const size_t begin = token.find_first_not_of(" \t\r\n");
  token =
      begin == token.npos ? "" : token.substr(begin, token.find_last_not_of(" \t\r\n") - begin + 1);
  const bool printable = std::ranges::all_of(token, [](char c) { return c > ' ' && c < 127; });
  if (printable && token.size() <= kTokenBytesMax) return token;
  return InvalidArgument("the token (--token, HF_TOKEN or its file) has characters that none has");
}

// A URL without the user and password that may stand before its host.
std::string WithoutUser(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t host = scheme == url.npos ? 0 : scheme + 3;
  const size_t at = url.substr(0, url.find('/', host)).rfind('@');
  return at == url.npos ? url : url.substr(0, host) + url.substr(at + 1);
}

// The sentence of the hub, where its answer has one.
std::string SaidBy(const HttpEnd& end) {
  std::string said = end.head.error_message;
  if (said.empty()) {
    const Result<Json> body = ParseJson(end.error_body);
    for (const char* key : {"error", "Message", "message"}) {
      if (!said.empty() || !body.ok() || !body.value().is_object()) break;
      const auto found = body.value().find(key);
      if (found != body.value().end() && found->is_string()) said = found->get<std::string>();
    }
  }
  return said.empty() ? "" : fmt::format(" ({})", ForTerminal(said));
}

}  // namespace

std::string Hub::ListingUrl() const {
  if (modelscope) {
    return fmt::format("{}/api/v1/models/{}/repo/files?Revision={}&Recursive=true", endpoint, repo,
                       UrlEncoded(revision, /*keep_slashes=*/false));
  }
  return fmt::format("{}/api/models/{}/revision/{}?blobs=true", endpoint, repo,
                     UrlEncoded(revision, /*keep_slashes=*/false));
}

std::string Hub::FileUrl(const std::string& path, const std::string& commit) const {
  return fmt::format("{}/{}{}/resolve/{}/{}", endpoint, modelscope ? "models/" : "", repo,
                     UrlEncoded(commit.empty() ? revision : commit, /*keep_slashes=*/false),
                     UrlEncoded(path, /*keep_slashes=*/true));
}

Result<Hub> HubOf(const PullCommand& command) {
  Hub hub{.modelscope = command.modelscope,
          .endpoint =
              command.modelscope ? command.places.modelscope_endpoint : command.places.hf_endpoint,
          .repo = command.repo,
          .revision = command.revision,
          .shown = {},
          .token = {},
          .page = {}};
  hub.shown = WithoutUser(hub.endpoint);
  const bool is_url = hub.endpoint.starts_with("https://") || hub.endpoint.starts_with("http://");
  if (!is_url || !IsSameOrigin(hub.endpoint, hub.endpoint)) {
    return InvalidArgument(fmt::format("{}={}: expected a URL like https://huggingface.co",
                                       command.modelscope ? "MODELSCOPE_DOMAIN" : "HF_ENDPOINT",
                                       hub.shown));
  }
  hub.page = fmt::format("{}/{}{}", hub.shown, hub.modelscope ? "models/" : "", hub.repo);
  BT_ASSIGN_OR_RETURN(hub.token, TokenOf(command));
  return hub;
}

Status Explain(const Hub& hub, const std::string& what, const HttpEnd& end) {
  const int status = end.head.status;
  const std::string said = SaidBy(end);
  const auto answer = [&](std::string_view meaning) {
    return fmt::format("{}: {} answered {}{}: {}", what, end.head.host, status, said, meaning);
  };
  const char* variable = hub.modelscope ? "MODELSCOPE_API_TOKEN" : "HF_TOKEN";
  switch (status) {
    case 401:
    case 403:
      // Elsewhere than at the hub it is a signed address that has run out; the next one is new.
      if (!end.head.at_hub) {
        return Status(Code::kUnavailable, answer("the address that the hub gave is not valid"));
      }
      if (hub.token.empty()) {
        return InvalidArgument(answer(
            fmt::format("the model is private, gated or not there; ask for access at {}, and "
                        "give a token of that account in {} or by --token",
                        hub.page, variable)));
      }
      return InvalidArgument(answer(fmt::format(
          "the token ({} or --token) does not open this model; ask for access at {} with "
          "its account",
          variable, hub.page)));
    case 404:
      if (end.head.error_code == "RevisionNotFound") {
        return Status(Code::kNotFound, answer(fmt::format("--revision {} is no branch, tag or "
                                                          "commit of {}",
                                                          hub.revision, hub.repo)));
      }
      return Status(Code::kNotFound, answer(fmt::format("see what there is at {}", hub.page)));
    case 408:
    case 425:
    case 429:
      return Status(Code::kUnavailable, answer("it wants less haste; --max-workers lowers it"));
    default:
      if (status >= 500) return Status(Code::kUnavailable, answer("a fault of the server"));
      return InvalidArgument(answer("no answer to such a request"));
  }
}

double WaitBefore(int attempt, double first_wait_s, const HttpHead& head) {
  const double own = std::min(kWaitMax, first_wait_s * std::pow(2.0, std::min(attempt, 20) - 1));
  if (head.retry_after_s < 0) return own;
  return std::max(own, std::min(kAskedWaitMax, static_cast<double>(head.retry_after_s)));
}

}  // namespace baltoro
