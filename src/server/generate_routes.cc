// The generating routes: from a body to a launched Generation.

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "server/chat_shape.h"
#include "server/completion_request.h"
#include "server/completion_shape.h"
#include "server/server_internal.h"
#include "server/trace_context.h"

namespace baltoro {
namespace {

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Header values are short and plain.
std::string UncheckedHeader(const std::vector<std::string>& unchecked) {
  constexpr size_t kBytesMax = 1024;
  std::string out;
  for (const std::string& one : unchecked) {
    if (!out.empty()) out += "; ";
    for (const char c : one) out.push_back(c >= ' ' && c <= '~' ? c : '?');
    if (out.size() <= kBytesMax) continue;
    out.resize(kBytesMax);
    return out + " ...";
  }
  return out;
}

// The header may come several times; its members are one list.
std::string TraceStateOf(const HttpRequest& request) {
  std::string out;
  for (const auto& [name, value] : request.headers) {
    if (name != "tracestate") continue;
    if (!out.empty()) out += ",";
    out += value;
  }
  return out;
}

}  // namespace

void Server::ChatCompletions(HttpRequest request, Reply reply) {
  Generate(std::move(request), std::move(reply), &Server::PrepareChat);
}

void Server::Completions(HttpRequest request, Reply reply) {
  Generate(std::move(request), std::move(reply), &Server::PrepareCompletion);
}

void Server::Generate(HttpRequest request, Reply reply, Prepare prepare) {
  if (!Serving()) {
    return Reject(reply, draining_ ? Rejection::kDraining : Rejection::kNotReady, NotServing());
  }
  // Made here, so that a server that drains waits for what it has accepted.
  const auto prepared = std::make_shared<Prepared>();
  prepared->ticket = ActiveTicket(active_);
  prepared->owner = JobOwner(request);
  prepared->trace = ReadTraceContext(request.Header("traceparent"), TraceStateOf(request));
  prepared->span = NewSpan(prepared->trace);
  RunPreparing(
      std::move(request), std::move(reply),
      [this, prepare, prepared, here = std::this_thread::get_id()](Asked& asked, Reply& answer) {
        prepared->unwanted = [this, &answer] { return Unwanted(answer).has_value(); };
        const auto error = (this->*prepare)(asked, *prepared);
        if (const auto unwanted = Unwanted(answer)) {
          return Reject(answer, Rejection::kDraining, *unwanted);
        }
        if (error) return Reject(answer, Rejection::kInvalid, *error);
        prepared->unwanted = nullptr;
        int32_t replica = -1;
        if (auto wrong = ReadReplica(asked.http, replica)) {
          return Reject(answer, Rejection::kInvalid, *wrong);
        }
        const std::string salt = CacheSaltOf(asked.http);
        for (Request& prompt : prepared->prompts) {
          prompt.cache_salt.insert(0, salt);
          prompt.owner = OwnerOf(asked.http);
          prompt.replica = replica;
        }
        prepared->io_thread = here;
        Constrain(std::move(answer), std::move(*prepared));
      });
}

// On any thread: a grammar that is not known yet is compiled on the compiler's.
void Server::Constrain(Reply reply, Prepared prepared) {
  if (!prepared.form) return LaunchThere(std::move(reply), std::move(prepared));
  if (auto known = forms_.Find(*prepared.form)) {
    prepared.compiled = std::move(known);
    return LaunchThere(std::move(reply), std::move(prepared));
  }
  const size_t bytes = prepared.form->key.size();
  const auto held =
      std::make_shared<std::pair<Reply, Prepared>>(std::move(reply), std::move(prepared));
  const auto refuse = [this, held] {
    Reject(held->first, Rejection::kDraining, ShuttingDownError());
  };
  const auto compile = [this, held] {
    auto& [answer, rest] = *held;
    auto compiled = forms_.Compile(*rest.form);
    if (!compiled.ok()) {
      const Status why = compiled.status();
      // All but a mistake of ours is the form's.
      if (why.code() == Code::kInternal) return Reject(answer, Rejection::kEngine, FromStatus(why));
      return Reject(answer, Rejection::kInvalid,
                    BadRequest(rest.form->ParamOf(why.message()), why.message()));
    }
    rest.compiled = std::move(compiled).value();
    LaunchThere(std::move(answer), std::move(rest));
  };
  const bool taken = compilers_->Post({.owner = held->second.owner,
                                       .bytes = bytes,
                                       .run = compile,
                                       .unwanted = [held] { return held->first.client_gone(); },
                                       .on_stop = refuse});
  if (taken) return;
  if (stopping_) return refuse();
  Reject(held->first, Rejection::kPreparingFull,
         OverloadedError("Too many grammars are waiting to be compiled."));
}

void Server::LaunchThere(Reply reply, Prepared prepared) {
  if (prepared.compiled != nullptr) {
    prepared.limits.grammar = prepared.compiled->grammar;
    const std::string unchecked = UncheckedHeader(prepared.compiled->unchecked);
    if (!unchecked.empty()) reply.AddHeader("x-baltoro-unchecked", unchecked);
  }
  if (prepared.limits.grammar || prepared.limits.thinking_budget >= 0 ||
      !prepared.limits.banned_sequences.empty()) {
    const SharedBytes constraint = prepared.limits.Serialise();
    for (Request& prompt : prepared.prompts) prompt.constraint = constraint;
  }
  if (std::this_thread::get_id() == prepared.io_thread) {
    return Launch(std::move(reply), std::move(prepared));
  }
  const size_t thread = reply.io_thread();
  const auto held =
      std::make_shared<std::pair<Reply, Prepared>>(std::move(reply), std::move(prepared));
  http_->Post(thread, [this, held] { Launch(std::move(held->first), std::move(held->second)); });
}

// As upstream's sampler: what the caller does not record is not recorded here.
std::unique_ptr<RequestSpan> Server::NewSpan(const TraceContext& context) const {
  if (config_.spans == nullptr || !context.sampled) return nullptr;
  auto span = std::make_unique<RequestSpan>();
  span->context = context;
  span->start = clock_.Now();
  span->start_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
  return span;
}

void Server::DescribeSpan(const Prepared& prepared, const std::string& model, RequestSpan& span) {
  const Request& first = prepared.prompts.front();
  span.request_id = prepared.answer_id;
  span.model = model;
  span.n = prepared.options.n;
  span.max_tokens = first.stop.max_tokens;
  span.temperature = first.sampling.temperature;
  span.top_p = first.sampling.top_p;
}

void Server::Launch(Reply reply, Prepared prepared) {
  if (stopping_) return Reject(reply, Rejection::kDraining, ShuttingDownError());
  if (config_.log_requests) {
    const Request& first = prepared.prompts.front();
    BT_LOG_LIMITED(
        Info,
        "Received request {}: prompts: {}, tokens of the first: {}, n: {}, max_tokens: {}, "
        "temperature: {}, top_p: {}{}{}",
        prepared.answer_id, prepared.prompts.size(), first.prompt.size(), prepared.options.n,
        first.stop.max_tokens, first.sampling.temperature, first.sampling.top_p,
        prepared.trace.trace_id.empty() ? "" : ", trace: ", prepared.trace.trace_id);
  }
  const GenerationContext context{.engine = &engine_,
                                  .dispatcher = &dispatcher_,
                                  .metrics = metrics_.get(),
                                  .clock = &clock_,
                                  .tokenizer = tokenizer_.get(),
                                  .spans = config_.spans,
                                  .stream_interval = config_.stream_interval};
  if (prepared.span != nullptr) DescribeSpan(prepared, names_.first(), *prepared.span);
  prepared.options.span = std::move(prepared.span);
  std::make_shared<Generation>(context, std::move(reply), std::move(prepared.ticket),
                               std::move(prepared.shape), std::move(prepared.options))
      ->Start(prepared.prompts);
}

GenerationOptions Server::OptionsOf(const GenerationFields& fields) const {
  GenerationOptions options;
  options.n = fields.n;
  options.stream = fields.stream;
  options.include_usage = fields.include_usage || config_.force_include_usage;
  options.continuous_usage = options.include_usage && fields.continuous_usage;
  options.keep_tokens = fields.return_token_ids;
  options.keep_prompt = fields.return_token_ids || fields.echo;
  options.show_stop_token = fields.include_stop_str_in_output;
  options.echo_only = fields.echo_only;
  options.parser.skip_special_tokens = fields.skip_special_tokens;
  options.stops = StopMatcher(fields.stop, fields.include_stop_str_in_output);
  return options;
}

void Server::ReadAsked(Asked& asked) {
  const std::string_view type = asked.http.Header("content-type");
  const std::string_view media = type.substr(0, type.find(';'));
  const bool json = EqualsIgnoreCase(media.substr(0, media.find(' ')), "application/json");
  if (!json) {
    asked.wrong_body = BadRequest("", "Unsupported Media Type: Only 'application/json' is allowed");
    return;
  }
  Result<Json> parsed = ParseJson(asked.http.body);
  asked.http.body = std::string();  // gives its memory back, which clear() would not
  if (!parsed.ok()) {
    asked.wrong_body = BadRequest("", parsed.status().message());
  } else if (!parsed.value().is_object()) {
    asked.wrong_body = BadRequest("", "the body must be a JSON object");
  } else {
    asked.body = std::move(parsed).value();
  }
}

std::optional<ApiError> Server::ReadBody(Asked& asked, Json& out) {
  if (asked.wrong_body) return asked.wrong_body;
  out = std::move(asked.body);
  return std::nullopt;
}

std::optional<ApiError> Server::CheckModel(const std::optional<std::string>& name) const {
  if (!name || names_.Knows(*name)) return std::nullopt;
  return NotFoundError("model", fmt::format("The model `{}` does not exist.", *name));
}

// The header of those who choose a replica themselves, as vLLM's routers do.
std::optional<ApiError> Server::ReadReplica(const HttpRequest& request, int32_t& replica) const {
  const std::string_view text = request.Header("x-data-parallel-rank");
  if (text.empty()) return std::nullopt;
  int32_t rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const int32_t first = config_.first_replica, last = first + config_.replicas - 1;
  if (error != std::errc() || end != text.data() + text.size() || rank < first || rank > last) {
    return BadRequest(
        "X-data-parallel-rank",
        fmt::format("X-data-parallel-rank must be a number of a replica, {} to {}", first, last));
  }
  if (config_.replicas > 1) replica = rank - first;
  return std::nullopt;
}

// The server's own id, with the client's in it when it sent a clean one: never used to find
// anything.
std::string Server::AnswerId(std::string_view prefix,
                             const HttpRequest& request,
                             const GenerationFields& fields) {
  const std::string_view header = request.Header("x-request-id");
  for (const std::string_view given : {header, std::string_view(fields.request_id)}) {
    if (!given.empty() && given.size() <= 64 && IsPrintable(given)) {
      return fmt::format("{}-{}", prefix, given);
    }
  }
  return fmt::format("{}-{}", prefix, NewName());
}

std::optional<ApiError> Server::PrepareChat(Asked& asked, Prepared& out) {
  Json body;
  if (auto error = ReadBody(asked, body)) return error;
  ChatRequest chat;
  if (auto error = ReadChatRequest(body, Limits(), config_.default_template_kwargs, chat))
    return error;
  body = Json();  // what was read of it is in `chat`, the text of pictures too
  const GenerationFields& fields = chat.fields;
  out.answer_id = AnswerId("chatcmpl", asked.http, fields);
  out.shape = MakeChatShape(
      *tokenizer_, {.id = out.answer_id,
                    .model = names_.first(),
                    .created = UnixNow(),
                    .include_reasoning = chat.include_reasoning,
                    .parallel_tool_calls = chat.parallel_tool_calls,
                    .logprobs = fields.sampling.logprobs >= 0,
                    .return_token_ids = fields.return_token_ids,
                    .token_names_as_ids = fields.token_names_as_ids,
                    .echo = fields.echo ? std::string(LastAssistantText(chat.messages)) : ""});
  return PrepareConversation(std::move(chat), out);
}

std::optional<ApiError> Server::PrepareCompletion(Asked& asked, Prepared& out) {
  Json body;
  if (auto error = ReadBody(asked, body)) return error;
  const GenerationLimits limits = Limits();
  CompletionRequest completion;
  if (auto error = ReadCompletionRequest(body, limits, completion)) return error;
  GenerationFields& fields = completion.fields;
  if (auto error = CheckModel(fields.model)) return error;

  out.answer_id = AnswerId("cmpl", asked.http, fields);
  out.shape = MakeCompletionShape(*tokenizer_, {.id = out.answer_id,
                                                .model = names_.first(),
                                                .created = UnixNow(),
                                                .logprobs = fields.sampling.logprobs >= 0,
                                                .echo = fields.echo,
                                                .return_token_ids = fields.return_token_ids,
                                                .token_names_as_ids = fields.token_names_as_ids});
  ConstrainText(fields, out);
  // Raw text: every token's characters, control tokens left out unless asked for.
  out.options = OptionsOf(fields);
  out.options.parser.reasoning = false;
  out.options.parser.tools = false;
  int64_t all_prompt_tokens = 0;
  for (CompletionPrompt& given : completion.prompts) {
    std::vector<TokenId> prompt;
    if (auto* text = std::get_if<std::string>(&given)) {
      if (auto error = CheckTextSize("prompt", text->size(), limits)) return error;
      prompt = tokenizer_->Encode(*text);
    } else {
      prompt = std::move(std::get<std::vector<TokenId>>(given));
    }
    TruncatePrompt(fields, limits, prompt);
    GenerationFields fitted = fields;
    const auto prompt_tokens = static_cast<int64_t>(prompt.size());
    const int64_t implied = kCompletionMaxTokens;
    if (auto error = FitToPrompt(prompt_tokens, limits, implied, fitted)) return error;
    all_prompt_tokens += prompt_tokens;
    if (auto error = CheckPromptLogprobs(all_prompt_tokens, fields)) return error;
    out.prompts.push_back(MakeRequest(fitted, std::move(prompt), config_.eos_ids, NextSeed()));
  }
  return std::nullopt;
}

}  // namespace baltoro
