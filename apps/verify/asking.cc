#include "verify/asking.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "client/api_client.h"
#include "terminal/safe_text.h"

namespace baltoro {
namespace {

constexpr int kSilentMax = 6;  // then a server is not asked any more
constexpr int kAttemptsMax = 8;
constexpr double kPauseMax = 60;

std::string Refusal(const WebAnswer& answer) {
  return fmt::format("{}: {}", answer.status,
                     ErrorMessageOf(HttpResponse{.status = answer.status, .body = answer.body}));
}

Json Word(const std::string& model) {
  return {{"model", model},
          {"messages", {{{"role", "user"}, {"content", "Hello"}}}},
          {"max_tokens", 4}};
}

}  // namespace

Result<Asker> Asker::Create(ServerState* server,
                            const VerifyOptions& options,
                            const std::atomic<bool>* stop) {
  BT_ASSIGN_OR_RETURN(WebClient client, WebClient::Create({.url = server->target.url,
                                                           .api_key = server->target.api_key,
                                                           .ca_file = options.ca_file,
                                                           .timeout = options.timeout,
                                                           .stop = stop}));
  return Asker(server, options, stop, std::move(client));
}

bool Asker::Pause(double seconds) const {
  const MonotonicClock clock;
  for (const Seconds end = clock.Now() + seconds; clock.Now() < end;) {
    if (stop_ != nullptr && *stop_) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

// A busy server says 429 or 503; as any client would, this one waits and asks again.
Result<WebAnswer> Asker::Send(const std::string& path,
                              const std::string& body,
                              const WebClient::OnBody& on_body,
                              Seconds* begun) {
  const MonotonicClock clock;
  const Seconds first = clock.Now();
  for (int attempt = 1;; ++attempt) {
    if (stop_ != nullptr && *stop_) return Status(Code::kUnavailable, "not asked: interrupted");
    if (server_->silent_in_a_row >= kSilentMax) {
      return Status(Code::kUnavailable,
                    fmt::format("not asked: nothing came to {} requests in a row", kSilentMax));
    }
    if (begun != nullptr) *begun = clock.Now();
    Result<WebAnswer> answer = client_.Send(path, body, on_body);
    if (!answer.ok()) {
      ++server_->silent_in_a_row;
      return answer;
    }
    server_->silent_in_a_row = 0;
    const int status = answer.value().status;
    if (status == 200) server_->answered = true;
    if ((status != 429 && status != 503) || attempt == kAttemptsMax) return answer;
    const double told = answer.value().retry_after;
    const double wait = std::min(
        kPauseMax, told >= 0 ? std::max(told, 0.1) : static_cast<double>(1 << (attempt - 1)));
    if (clock.Now() - first + wait > options_.timeout || !Pause(wait)) return answer;
  }
}

Result<Json> Asker::Post(const std::string& path, const Json& body) {
  const std::string text = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  BT_ASSIGN_OR_RETURN(const WebAnswer answer, Send(path, text, nullptr));
  if (answer.status == 200) {
    Result<Json> json = ParseJson(answer.body, {.nodes = 20'000'000});
    if (json.ok()) return json;
    return Status(Code::kInternal,
                  "the answer is no JSON: " + ForTerminal(json.status().message()));
  }
  const bool ours_to_mend = answer.status >= 400 && answer.status < 500;
  return Status(ours_to_mend ? Code::kInvalidArgument : Code::kInternal, Refusal(answer));
}

Result<std::string> Asker::FindModel(const std::string& wanted) {
  const Result<WebAnswer> answer = Send("/v1/models", "", nullptr);
  if (!answer.ok()) {
    return Status(Code::kUnavailable, answer.status().message());
  }
  const int status = answer.value().status;
  if (status == 401 || status == 403) {
    return InvalidArgument(fmt::format("{}; {} is the key", Refusal(answer.value()),
                                       server_->name == "ours" ? "--api-key (or VLLM_API_KEY)"
                                                               : "--against-api-key (or "
                                                                 "BALTORO_AGAINST_API_KEY)"));
  }
  if (!wanted.empty()) return wanted;
  const std::string flag = server_->name == "ours" ? "--model" : "--against-model";
  if (status != 200) {
    return InvalidArgument(fmt::format("/v1/models says {}; {} names a model without it",
                                       Refusal(answer.value()), flag));
  }
  const Result<Json> models = ParseJson(answer.value().body);
  if (models.ok() && models.value().is_object()) {
    const Json data = models.value().value("data", Json::array());
    if (data.is_array() && !data.empty() && data.front().is_object()) {
      const Json id = data.front().value("id", Json());
      if (id.is_string()) return id.get<std::string>();
    }
  }
  return InvalidArgument(fmt::format("/v1/models names no model; {} names one", flag));
}

Abilities Asker::Probe() {
  Abilities can;
  const std::string path = "/v1/chat/completions";
  const auto ask = [&](bool logprobs, bool token_ids) -> Result<ModelReply> {
    const SentAs as{
        .model = server_->model, .max_tokens = 4, .logprobs = logprobs, .token_ids = token_ids};
    BT_ASSIGN_OR_RETURN(const Json answer, Post(path, BodyToSend(Word(server_->model), as)));
    return ReadReply(answer);
  };
  const auto judge = [](const Result<ModelReply>& reply, bool has, const char* what, bool& can_it,
                        std::string& why) {
    can_it = reply.ok() && has;
    if (!can_it) {
      why = reply.ok() ? fmt::format("the server gives no {}", what) : reply.status().message();
    }
  };
  const Result<ModelReply> logprobs = ask(true, false);
  judge(logprobs, logprobs.ok() && !logprobs.value().chances.empty(), "log-probabilities",
        can.logprobs, can.logprobs_why);
  const Result<ModelReply> ids = ask(false, true);
  judge(ids, ids.ok() && !ids.value().prompt_ids.empty() && !ids.value().ids.empty(),
        "ids of tokens with its answers", can.token_ids, can.token_ids_why);

  const auto tokens = [&]() -> Result<std::vector<int64_t>> {
    BT_ASSIGN_OR_RETURN(const Json answer,
                        Post("/tokenize", BodyToTokenize(Word(server_->model), server_->model)));
    return ReadTokens(answer);
  }();
  can.tokenize = tokens.ok();
  if (!can.tokenize) can.tokenize_why = "/tokenize: " + tokens.status().message();

  // Ids that every vocabulary has.
  Heard heard;
  can.echo = true;
  server_->can = can;
  AskGiven({.ids = {100, 200, 300}, .prompt_count = 3}, heard);
  can.echo = heard.given_error.empty();
  can.echo_why = heard.given_error;
  return can;
}

void Asker::AskTokens(const VerifyPrompt& prompt, Heard& heard) {
  if (!heard.whole.prompt_ids.empty()) {
    heard.prompt_ids = heard.whole.prompt_ids;
    return;
  }
  if (!server_->can.tokenize) {
    heard.prompt_ids_error = server_->can.tokenize_why;
    return;
  }
  const Result<Json> answer = Post("/tokenize", BodyToTokenize(prompt.body, server_->model));
  const Result<std::vector<int64_t>> ids =
      answer.ok() ? ReadTokens(answer.value()) : Result<std::vector<int64_t>>(answer.status());
  if (ids.ok()) {
    heard.prompt_ids = ids.value();
  } else {
    heard.prompt_ids_error = "/tokenize: " + ids.status().message();
  }
}

void Asker::AskWhole(const VerifyPrompt& prompt, Heard& heard) {
  const SentAs as{.model = server_->model,
                  .max_tokens = options_.max_tokens,
                  .logprobs = server_->can.logprobs,
                  .token_ids = server_->can.token_ids};
  const Result<Json> answer = Post("/v1/chat/completions", BodyToSend(prompt.body, as));
  Result<ModelReply> reply =
      answer.ok() ? ReadReply(answer.value()) : Result<ModelReply>(answer.status());
  if (reply.ok()) {
    heard.whole = std::move(reply).value();
    return;
  }
  heard.whole_error = reply.status().message();
  heard.refused = !answer.ok() && answer.status().code() == Code::kInvalidArgument;
}

void Asker::AskStreamed(const VerifyPrompt& prompt, Heard& heard) {
  const SentAs as{.model = server_->model, .max_tokens = options_.max_tokens, .streamed = true};
  const std::string body =
      BodyToSend(prompt.body, as).dump(-1, ' ', false, Json::error_handler_t::replace);
  AnswerReader reader(&heard.streamed, /*chat=*/true);
  const Result<WebAnswer> answer = Send(
      "/v1/chat/completions", body,
      [&](std::string_view bytes, Seconds at) { reader.Feed(bytes, at); }, &heard.streamed.start);
  if (!answer.ok()) return reader.End(answer.status().message());
  reader.End(answer.value().status == 200 ? "" : Refusal(answer.value()));
}

void Asker::AskGiven(const GivenText& given, Heard& heard) {
  if (!server_->can.echo) {
    heard.given_error = server_->can.echo_why;
    return;
  }
  const Json body = {{"model", server_->model}, {"prompt", given.ids}, {"max_tokens", 1},
                     {"temperature", 0},        {"echo", true},        {"logprobs", 1}};
  const Result<Json> answer = Post("/v1/completions", body);
  Result<std::vector<double>> values = answer.ok() ? ReadEcho(answer.value(), given.ids.size())
                                                   : Result<std::vector<double>>(answer.status());
  if (values.ok()) {
    heard.given = std::move(values).value();
  } else {
    heard.given_error = "/v1/completions with echo: " + values.status().message();
  }
}

}  // namespace baltoro
