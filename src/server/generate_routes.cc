// The generating routes: from a body to a launched Generation.

#include <fmt/format.h>

#include <chrono>

#include "base/log.h"
#include "server/chat_shape.h"
#include "server/completion_request.h"
#include "server/completion_shape.h"
#include "server/server_internal.h"

namespace baltoro {
namespace {

constexpr size_t kPrepareHereBytes = 32 * 1024;

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool Printable(std::string_view text) {
  for (const char c : text) {
    if (c <= ' ' || c > '~') return false;
  }
  return !text.empty();
}

// The assistant's text that an echo repeats and a continued message starts with.
std::string LastAssistantText(const Json& messages) {
  const Json& last = messages.back();
  if (last["role"] != "assistant" || !last["content"].is_string()) return "";
  return last["content"].get<std::string>();
}

// Lists of text parts as one string each, for templates that know only strings.
Json WithStringContent(Json messages) {
  for (Json& message : messages) {
    if (!message["content"].is_array()) continue;
    std::string text;
    for (const Json& part : message["content"]) {
      if (!text.empty()) text += "\n";
      text += part.is_string() ? part.get<std::string>() : part["text"].get<std::string>();
    }
    message["content"] = text;
  }
  return messages;
}

}  // namespace

void Server::ChatCompletions(HttpRequest request, Responder responder) {
  Generate(std::move(request), std::move(responder),
           [this](const HttpRequest& r, Prepared& out) { return PrepareChat(r, out); });
}

void Server::Completions(HttpRequest request, Responder responder) {
  Generate(std::move(request), std::move(responder),
           [this](const HttpRequest& r, Prepared& out) { return PrepareCompletion(r, out); });
}

void Server::Generate(HttpRequest request, Responder responder, Prepare prepare) {
  if (!Serving()) {
    metrics_->CountRejected(draining_ ? "draining" : "not_ready");
    return Refuse(
        request, responder,
        UnavailableError(draining_ ? "The server is shutting down." : "The engine is not ready."));
  }
  if (request.body.size() <= kPrepareHereBytes) {
    Prepared prepared;
    if (const auto error = prepare(request, prepared)) return Refuse(request, responder, *error);
    return Launch(request, std::move(responder), std::move(prepared));
  }
  const size_t thread = responder.io_thread();
  // std::function wants copies; the exchange has one owner at a time.
  auto shared =
      std::make_shared<std::pair<HttpRequest, Responder>>(std::move(request), std::move(responder));
  worker_->Post([this, thread, shared, prepare = std::move(prepare)] {
    auto prepared = std::make_shared<Prepared>();
    if (const auto error = prepare(shared->first, *prepared))
      return Refuse(shared->first, shared->second, *error);
    http_->Post(thread, [this, shared, prepared] {
      Launch(shared->first, std::move(shared->second), std::move(*prepared));
    });
  });
}

void Server::Launch(const HttpRequest& request, Responder responder, Prepared prepared) {
  Engine* engine = engine_;
  if (engine == nullptr)
    return Refuse(request, responder, UnavailableError("The engine is not ready."));
  AddCors(request, prepared.options.headers);
  if (config_.request_id_headers)
    prepared.options.headers.emplace_back("x-request-id", prepared.answer_id);
  if (config_.log_requests) {
    const Request& first = prepared.requests.front();
    BT_LOG(Info,
           "Received request {}: prompt tokens: {}, max_tokens: {}, temperature: {}, top_p: {}, "
           "choices: {}",
           prepared.answer_id, first.prompt.size(), first.stop.max_tokens,
           first.sampling.temperature, first.sampling.top_p, prepared.requests.size());
  }
  const GenerationContext context{.engine = engine,
                                  .dispatcher = &dispatcher_,
                                  .metrics = metrics_.get(),
                                  .clock = &clock_,
                                  .stream_interval = config_.stream_interval};
  ++active_;
  const auto generation = std::shared_ptr<Generation>(
      new Generation(context, std::move(responder), std::move(prepared.shape), *tokenizer_,
                     std::move(prepared.options)),
      [this](Generation* done) {
        delete done;
        --active_;
      });
  generation->Start(std::move(prepared.requests));
}

std::optional<ApiError> Server::ReadBody(const HttpRequest& request, Json& out) const {
  const std::string_view type = request.Header("content-type");
  const std::string_view media = type.substr(0, type.find(';'));
  const bool json = EqualsIgnoreCase(media.substr(0, media.find(' ')), "application/json");
  if (!json) return BadRequest("", "Unsupported Media Type: Only 'application/json' is allowed");
  Result<Json> parsed = ParseJson(request.body);
  if (!parsed.ok()) return BadRequest("", parsed.status().message());
  out = std::move(parsed).value();
  return std::nullopt;
}

std::optional<ApiError> Server::CheckModel(const std::string& name) const {
  if (name.empty()) return std::nullopt;
  for (const std::string& known : config_.model_names) {
    if (known == name) return std::nullopt;
  }
  return NotFoundError("model", fmt::format("The model `{}` does not exist.", name));
}

// The server's own id, with the client's in it when it sent a clean one: never used to find
// anything.
std::string Server::AnswerId(std::string_view prefix,
                             const HttpRequest& request,
                             const GenerationFields& fields) {
  const std::string_view header = request.Header("x-request-id");
  for (const std::string_view given : {header, std::string_view(fields.request_id)}) {
    if (given.size() <= 64 && Printable(given)) return fmt::format("{}-{}", prefix, given);
  }
  const uint64_t number = next_answer_.fetch_add(1, std::memory_order_relaxed);
  return fmt::format("{}-{:016x}{:016x}", prefix, answer_salt_, number * 0x9E3779B97F4A7C15u);
}

std::optional<ApiError> Server::RenderChat(const ChatRequest& chat,
                                           std::vector<TokenId>& out) const {
  if (chat_template_ == nullptr) {
    return BadRequest("messages", "this model has no chat template; use /v1/completions");
  }
  Json joined;
  if (config_.content_as_string) joined = WithStringContent(chat.messages);
  ChatTemplateInput input;
  input.messages = config_.content_as_string ? &joined : &chat.messages;
  input.tools = chat.tools.is_null() ? nullptr : &chat.tools;
  input.extra = &chat.template_kwargs;
  input.add_generation_prompt = chat.add_generation_prompt;
  Result<std::vector<TextSegment>> rendered = chat_template_->Render(input);
  if (!rendered.ok()) return BadRequest("messages", rendered.status().message());
  std::vector<TextSegment> segments = std::move(rendered).value();
  if (chat.continue_final_message) {
    // Cut what the template closes the last message with.
    while (!segments.empty() && segments.back().special_allowed) segments.pop_back();
    if (LastAssistantText(chat.messages).empty() || segments.empty()) {
      return BadRequest("continue_final_message",
                        "the last message must be an assistant message with text");
    }
  }
  out = tokenizer_->EncodeSegments(segments);
  return std::nullopt;
}

std::optional<ApiError> Server::PrepareChat(const HttpRequest& request, Prepared& out) {
  Json body;
  if (auto error = ReadBody(request, body)) return error;
  const GenerationLimits limits = Limits();
  ChatRequest chat;
  if (auto error = ReadChatRequest(body, limits, config_.default_template_kwargs, chat))
    return error;
  if (auto error = CheckModel(chat.fields.model)) return error;
  std::vector<TokenId> prompt;
  if (auto error = RenderChat(chat, prompt)) return error;
  if (auto error =
          FitToPrompt(static_cast<int64_t>(prompt.size()), limits, std::nullopt, chat.fields))
    return error;

  const GenerationFields& fields = chat.fields;
  out.answer_id = AnswerId("chatcmpl", request, fields);
  out.shape =
      MakeChatShape(*tokenizer_, {.id = out.answer_id,
                                  .model = config_.model_names.front(),
                                  .created = UnixNow(),
                                  .include_reasoning = chat.include_reasoning,
                                  .parallel_tool_calls = chat.parallel_tool_calls,
                                  .logprobs = fields.sampling.logprobs >= 0,
                                  .return_token_ids = fields.return_token_ids,
                                  .echo = fields.echo ? LastAssistantText(chat.messages) : ""});
  EventParserOptions parser;
  parser.reasoning = config_.reasoning_parser;
  parser.tools = config_.tool_parser && chat.tool_choice != ToolChoice::kNone;
  // Read off the prompt itself, so that template and parser cannot disagree.
  const std::optional<TokenId> think = tokenizer_->SpecialId("<think>");
  parser.starts_in_reasoning = think.has_value() && prompt.back() == *think;
  parser.skip_special_tokens = fields.skip_special_tokens;
  out.options.stream = fields.stream;
  out.options.include_usage = fields.include_usage || config_.force_include_usage;
  out.options.continuous_usage = fields.continuous_usage || config_.force_include_usage;
  out.options.keep_tokens = fields.return_token_ids;
  const uint64_t seed =
      config_.seed + next_seed_.fetch_add(1, std::memory_order_relaxed) * 0xD1342543DE82EF95u;
  for (int32_t i = 0; i < fields.n; ++i) {
    out.requests.push_back(MakeRequest(fields, prompt, config_.eos_ids, seed, i));
    out.options.parsers.push_back(parser);
    out.options.stops.emplace_back(fields.stop, fields.include_stop_str_in_output);
  }
  return std::nullopt;
}

std::optional<ApiError> Server::PrepareCompletion(const HttpRequest& request, Prepared& out) {
  Json body;
  if (auto error = ReadBody(request, body)) return error;
  const GenerationLimits limits = Limits();
  CompletionRequest completion;
  if (auto error = ReadCompletionRequest(body, limits, completion)) return error;
  GenerationFields& fields = completion.fields;
  if (auto error = CheckModel(fields.model)) return error;

  out.answer_id = AnswerId("cmpl", request, fields);
  out.shape = MakeCompletionShape(*tokenizer_, {.id = out.answer_id,
                                                .model = config_.model_names.front(),
                                                .created = UnixNow(),
                                                .logprobs = fields.sampling.logprobs >= 0,
                                                .echo = fields.echo,
                                                .return_token_ids = fields.return_token_ids});
  // Raw text: every token's characters, control tokens left out unless asked for.
  EventParserOptions parser;
  parser.reasoning = false;
  parser.tools = false;
  parser.starts_in_reasoning = false;
  parser.skip_special_tokens = fields.skip_special_tokens;
  out.options.stream = fields.stream;
  out.options.include_usage = fields.include_usage || config_.force_include_usage;
  out.options.continuous_usage = fields.continuous_usage || config_.force_include_usage;
  out.options.keep_tokens = fields.return_token_ids;
  const uint64_t seed =
      config_.seed + next_seed_.fetch_add(1, std::memory_order_relaxed) * 0xD1342543DE82EF95u;
  for (CompletionPrompt& given : completion.prompts) {
    std::vector<TokenId> prompt;
    if (auto* text = std::get_if<std::string>(&given)) {
      // A text over 16 bytes a token of the model's length cannot fit; no need to encode it to
      // know.
      if (text->size() > static_cast<size_t>(16 * limits.max_model_len) + (1 << 20)) {
        return BadRequest("prompt",
                          fmt::format("prompt: {} bytes are too long for a model of {} tokens",
                                      text->size(), limits.max_model_len));
      }
      prompt = tokenizer_->Encode(*text);
    } else {
      prompt = std::move(std::get<std::vector<TokenId>>(given));
    }
    if (auto error = FitToPrompt(static_cast<int64_t>(prompt.size()), limits, std::nullopt, fields))
      return error;
    for (int32_t i = 0; i < fields.n; ++i) {
      out.requests.push_back(
          MakeRequest(fields, prompt, config_.eos_ids, seed + out.requests.size() / fields.n, i));
      out.options.parsers.push_back(parser);
      out.options.stops.emplace_back(fields.stop, fields.include_stop_str_in_output);
    }
  }
  return std::nullopt;
}

}  // namespace baltoro
