// The chat pipeline: from a checked conversation to what the engine is asked, for every API.

#include <fmt/format.h>

#include <algorithm>

#include "server/chat_body.h"
#include "server/server_internal.h"
#include "text/tool_call_ids.h"

namespace baltoro {
namespace {

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

// vLLM's rule: the word as it stands, and the word after a space where that is a token sequence of
// the same length which begins differently.
std::vector<std::vector<TokenId>> BannedSequences(const Tokenizer& tokenizer,
                                                  const std::vector<std::string>& words) {
  std::vector<std::vector<TokenId>> out;
  for (const std::string& word : words) {
    const size_t begin = std::min(word.find_first_not_of(" \t\r\n"), word.size());
    std::string text = word.substr(begin);
    std::vector<TokenId> plain = tokenizer.Encode(text);
    text.insert(text.begin(), ' ');
    std::vector<TokenId> spaced = tokenizer.Encode(text);
    const bool differs = !plain.empty() && plain.size() == spaced.size() && plain[0] != spaced[0];
    if (!plain.empty()) out.push_back(std::move(plain));
    if (differs) out.push_back(std::move(spaced));
  }
  return out;
}

}  // namespace

std::string LastAssistantText(const Json& messages) {
  const Json& last = messages.back();
  if (last["role"] != "assistant" || !last["content"].is_string()) return "";
  return last["content"].get<std::string>();
}

// Gives the calls of the history their ids, or checks that the client did.
std::optional<ApiError> Server::SettleToolCalls(ChatRequest& chat) const {
  if (config_.normalise_tool_call_ids) {
    chat.earlier_calls = NormaliseToolCallIds(chat.messages);
  } else {
    chat.earlier_calls = CountToolCalls(chat.messages);
  }
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const Json& message = chat.messages[i];
    if (message["role"] == "tool" && !message.contains("tool_call_id")) {
      return BadPlace(fmt::format("messages[{}].tool_call_id", i),
                      "is required: there is no call before it that this result answers");
    }
    const auto calls = message.find("tool_calls");
    for (size_t call = 0; calls != message.end() && call < calls->size(); ++call) {
      if ((*calls)[call]["id"] != "") continue;
      return BadPlace(fmt::format("messages[{}].tool_calls[{}].id", i, call), "is required");
    }
  }
  return std::nullopt;
}

std::optional<ApiError> Server::RenderChat(ChatRequest& chat,
                                           const GenerationLimits& limits,
                                           const std::function<bool()>& unwanted,
                                           ChatPrompt& out) {
  if (chat_template_ == nullptr || tokenizer_->empty()) {
    return BadRequest("messages", tokenizer_->empty()
                                      ? "messages: this model has no tokenizer; use "
                                        "/v1/completions with token ids"
                                      : "messages: this model has no chat template; start "
                                        "the server with --chat-template, or use "
                                        "/v1/completions");
  }
  if (auto error = CheckPictures(chat)) return error;
  if (auto error = SettleToolCalls(chat)) return error;
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
  if (auto error = SpellVideos(chat, segments)) return error;
  size_t bytes = 0;
  for (const TextSegment& segment : segments) bytes += segment.text.size();
  if (limits.max_model_len > 0) {
    if (auto error = CheckTextSize("messages", bytes, limits)) return error;
  }
  out.tokens = tokenizer_->EncodeSegments(segments);
  return PlacePictures(chat, limits, unwanted, out);
}

// Read off the prompt itself, so that template and parser cannot disagree.
bool Server::StartsInReasoning(const ChatRequest& chat, const std::vector<TokenId>& prompt) const {
  const std::optional<TokenId> begin = tokenizer_->SpecialId("<think>");
  const std::optional<TokenId> end = tokenizer_->SpecialId("</think>");
  const std::optional<TokenId> turn = tokenizer_->SpecialId("<|im_middle|>");
  if (!begin || !end) return false;
  for (auto id = prompt.rbegin(); id != prompt.rend() && *id != turn; ++id) {
    if (*id == *begin) return true;
    if (*id == *end) return false;
  }
  // A template that writes thinking into answers and does not open it leaves that to the model.
  const auto wish = chat.template_kwargs.find("thinking");
  const bool off = wish != chat.template_kwargs.end() && *wish == false;
  return chat.add_generation_prompt && chat_template_->renders_thinking() && !off;
}

void Server::ConstrainText(const GenerationFields& fields, Prepared& out) const {
  out.limits.banned_sequences = BannedSequences(*tokenizer_, fields.bad_words);
  if (fields.form.kind != OutputFormKind::kFree) out.form = FormSpec::Of(fields.form);
}

std::optional<ApiError> Server::ConstrainConversation(const ChatRequest& chat,
                                                      bool reasoning,
                                                      Prepared& out) const {
  const GenerationFields& fields = chat.fields;
  ConstrainText(fields, out);
  OutputConstraint& limits = out.limits;
  limits.thinking_budget = fields.thinking_budget;
  limits.think_end = tokenizer_->SpecialId("</think>");
  limits.section_begin = tokenizer_->SpecialId("<|tool_calls_section_begin|>");
  const bool must_call =
      chat.tool_choice == ToolChoice::kRequired || chat.tool_choice == ToolChoice::kNamed;
  // Without a reasoning parser the whole answer is the text that was asked for: where that has a
  // form, thinking has no place in it, however much of it was granted.
  const bool formed = must_call || fields.form.kind != OutputFormKind::kFree;
  limits.starts_in_reasoning =
      reasoning && (config_.reasoning_parser || (limits.thinking_budget >= 0 && !formed));

  const bool can_call = config_.tool_parser && forms_.knows_tools();
  if (must_call && !can_call) {
    return BadRequest("tool_choice",
                      config_.tool_parser
                          ? "tool_choice: this model's vocabulary has no marks of tool calls"
                          : "tool_choice: this server was started without a tool-call parser");
  }
  if (chat.tools.is_null()) return std::nullopt;
  if (chat.tool_choice == ToolChoice::kNone) {
    // The answer is plain text then, and each mark would be shown in it: a model that may not begin
    // a section can still write a call's arguments and end what it never began.
    for (const TokenId mark : forms_.tool_marks()) limits.banned_sequences.push_back({mark});
    return std::nullopt;
  }
  if (!can_call || (!chat.constrain_tools && !must_call)) return std::nullopt;
  ToolUse use{.tools = &chat.tools,
              .named = chat.named_tool,
              .allowed = chat.allowed_tools,
              .must_call = must_call,
              .parallel = chat.parallel_tool_calls};
  // Where the parser numbers the calls, the grammar need not, and is the same in every turn.
  if (!config_.normalise_tool_call_ids) use.first_index = chat.earlier_calls;
  out.form = FormSpec::Of(fields.form, use);
  return std::nullopt;
}

std::optional<ApiError> Server::PrepareConversation(ChatRequest chat, Prepared& out) {
  const GenerationLimits limits = Limits();
  GenerationFields& fields = chat.fields;
  if (auto error = CheckModel(fields.model)) return error;
  if (out.unwanted()) return ClientGoneError();
  ChatPrompt rendered;
  rendered.owner = out.owner;
  if (auto error = RenderChat(chat, limits, out.unwanted, rendered)) return error;
  std::vector<TokenId>& prompt = rendered.tokens;
  const size_t whole = prompt.size();
  TruncatePrompt(fields, limits, prompt);
  if (prompt.size() < whole && !rendered.pictures.empty()) {
    return BadRequest("truncate_prompt_tokens",
                      "truncate_prompt_tokens: a prompt with pictures is not cut");
  }
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  if (auto error = FitToPrompt(prompt_tokens, limits, std::nullopt, fields)) return error;
  if (auto error = CheckPromptLogprobs(prompt_tokens, fields)) return error;

  out.options = OptionsOf(fields);
  EventParserOptions& parser = out.options.parser;
  parser.reasoning = config_.reasoning_parser;
  parser.tools = config_.tool_parser && chat.tool_choice != ToolChoice::kNone;
  if (config_.normalise_tool_call_ids) parser.first_call_index = chat.earlier_calls;
  parser.starts_in_reasoning = StartsInReasoning(chat, prompt);
  // A call that the client chose itself is no decision of the model's: upstream reports "stop".
  out.options.calls_end_as_stop = chat.tool_choice == ToolChoice::kNamed;
  if (auto error = ConstrainConversation(chat, parser.starts_in_reasoning, out)) return error;
  out.prompts.push_back(MakeRequest(fields, std::move(prompt), config_.eos_ids, NextSeed()));
  return HoldPictures(std::move(rendered.pictures), out);
}

}  // namespace baltoro
