// The generating routes: from a body to a launched Generation.

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "base/log.h"
#include "server/chat_shape.h"
#include "server/completion_request.h"
#include "server/completion_shape.h"
#include "server/server_internal.h"

namespace baltoro {
namespace {

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
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
  RunPreparing(std::move(request), std::move(reply),
               [this, prepare, prepared, here = std::this_thread::get_id()](HttpRequest& asked,
                                                                            Reply& answer) {
                 if (const auto error = (this->*prepare)(asked, *prepared)) {
                   return Reject(answer, Rejection::kInvalid, *error);
                 }
                 if (std::this_thread::get_id() == here) {
                   return Launch(std::move(answer), std::move(*prepared));
                 }
                 const size_t thread = answer.io_thread();
                 http_->Post(thread,
                             [this, prepared, moved = std::make_shared<Reply>(std::move(answer))] {
                               Launch(std::move(*moved), std::move(*prepared));
                             });
               });
}

void Server::Launch(Reply reply, Prepared prepared) {
  if (config_.log_requests) {
    const Request& first = prepared.prompts.front();
    BT_LOG(Info,
           "Received request {}: prompts: {}, tokens of the first: {}, n: {}, max_tokens: {}, "
           "temperature: {}, top_p: {}",
           prepared.answer_id, prepared.prompts.size(), first.prompt.size(), prepared.options.n,
           first.stop.max_tokens, first.sampling.temperature, first.sampling.top_p);
  }
  const GenerationContext context{.engine = &engine_,
                                  .dispatcher = &dispatcher_,
                                  .metrics = metrics_.get(),
                                  .clock = &clock_,
                                  .tokenizer = tokenizer_.get(),
                                  .stream_interval = config_.stream_interval};
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

std::optional<ApiError> Server::ReadBody(const HttpRequest& request, Json& out) const {
  const std::string_view type = request.Header("content-type");
  const std::string_view media = type.substr(0, type.find(';'));
  const bool json = EqualsIgnoreCase(media.substr(0, media.find(' ')), "application/json");
  if (!json) return BadRequest("", "Unsupported Media Type: Only 'application/json' is allowed");
  Result<Json> parsed = ParseJson(request.body);
  if (!parsed.ok()) return BadRequest("", parsed.status().message());
  out = std::move(parsed).value();
  if (!out.is_object()) return BadRequest("", "the body must be a JSON object");
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
    if (!given.empty() && given.size() <= 64 && IsPrintable(given)) {
      return fmt::format("{}-{}", prefix, given);
    }
  }
  return fmt::format("{}-{}", prefix, NewName());
}

std::optional<ApiError> Server::RenderChat(const ChatRequest& chat,
                                           const GenerationLimits& limits,
                                           std::vector<TokenId>& out) const {
  if (chat_template_ == nullptr || tokenizer_->empty()) {
    return BadRequest("messages", tokenizer_->empty()
                                      ? "messages: this model has no tokenizer; use "
                                        "/v1/completions with token ids"
                                      : "messages: this model has no chat template; use "
                                        "/v1/completions");
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
    const bool ends_in_text =
        !LastAssistantText(chat.messages).empty() && !chat.messages.back().contains("tool_calls");
    if (!ends_in_text || segments.empty()) {
      return BadRequest("continue_final_message",
                        "continue_final_message: the last message must be an assistant message "
                        "with text and without tool calls");
    }
  }
  size_t bytes = 0;
  for (const TextSegment& segment : segments) bytes += segment.text.size();
  if (limits.max_model_len > 0) {
    if (auto error = CheckTextSize("messages", bytes, limits)) return error;
  }
  out = tokenizer_->EncodeSegments(segments);
  return std::nullopt;
}

std::optional<ApiError> Server::PrepareConversation(ChatRequest chat, Prepared& out) {
  const GenerationLimits limits = Limits();
  GenerationFields& fields = chat.fields;
  if (auto error = CheckModel(fields.model)) return error;
  std::vector<TokenId> prompt;
  if (auto error = RenderChat(chat, limits, prompt)) return error;
  TruncatePrompt(fields, limits, prompt);
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  if (auto error = FitToPrompt(prompt_tokens, limits, std::nullopt, fields)) return error;

  out.options = OptionsOf(fields);
  EventParserOptions& parser = out.options.parser;
  parser.reasoning = config_.reasoning_parser;
  parser.tools = config_.tool_parser && chat.tool_choice != ToolChoice::kNone;
  // Read off the prompt itself, so that template and parser cannot disagree.
  const std::optional<TokenId> think = tokenizer_->SpecialId("<think>");
  parser.starts_in_reasoning = think.has_value() && prompt.back() == *think;
  out.prompts.push_back(MakeRequest(fields, std::move(prompt), config_.eos_ids, NextSeed()));
  return std::nullopt;
}

std::optional<ApiError> Server::PrepareChat(const HttpRequest& request, Prepared& out) {
  Json body;
  if (auto error = ReadBody(request, body)) return error;
  ChatRequest chat;
  if (auto error = ReadChatRequest(body, Limits(), config_.default_template_kwargs, chat))
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
                                  .token_names_as_ids = fields.token_names_as_ids,
                                  .echo = fields.echo ? LastAssistantText(chat.messages) : ""});
  return PrepareConversation(std::move(chat), out);
}

std::optional<ApiError> Server::PrepareCompletion(const HttpRequest& request, Prepared& out) {
  Json body;
  if (auto error = ReadBody(request, body)) return error;
  const GenerationLimits limits = Limits();
  CompletionRequest completion;
  if (auto error = ReadCompletionRequest(body, limits, completion)) return error;
  const GenerationFields& fields = completion.fields;
  if (auto error = CheckModel(fields.model)) return error;

  out.answer_id = AnswerId("cmpl", request, fields);
  out.shape = MakeCompletionShape(*tokenizer_, {.id = out.answer_id,
                                                .model = config_.model_names.front(),
                                                .created = UnixNow(),
                                                .logprobs = fields.sampling.logprobs >= 0,
                                                .echo = fields.echo,
                                                .return_token_ids = fields.return_token_ids,
                                                .token_names_as_ids = fields.token_names_as_ids});
  // Raw text: every token's characters, control tokens left out unless asked for.
  out.options = OptionsOf(fields);
  out.options.parser.reasoning = false;
  out.options.parser.tools = false;
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
    out.prompts.push_back(MakeRequest(fitted, std::move(prompt), config_.eos_ids, NextSeed()));
  }
  return std::nullopt;
}

}  // namespace baltoro
