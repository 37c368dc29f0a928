// POST /v1/messages and /v1/messages/count_tokens.

#include "server/messages_request.h"
#include "server/messages_shape.h"
#include "server/server_internal.h"

namespace baltoro {

void Server::Messages(HttpRequest request, Reply reply) {
  Generate(std::move(request), std::move(reply), &Server::PrepareMessages);
}

void Server::CountTokens(HttpRequest request, Reply reply) {
  RunPreparing(std::move(request), std::move(reply), [this](Asked& asked, Reply& answer) {
    ChatPrompt prompt;
    prompt.owner = JobOwner(asked.http);
    if (const auto error = CountTokensOf(asked, answer, prompt)) {
      return Reject(answer, Rejection::kInvalid, *error);
    }
    answer.SendJson(Json{{"input_tokens", prompt.tokens.size()}}.dump());
  });
}

std::optional<ApiError> Server::CountTokensOf(Asked& asked,
                                              const Reply& reply,
                                              ChatPrompt& prompt) {
  Json body;
  if (auto error = ReadBody(asked, body)) return error;
  MessagesRequest messages;
  if (auto error = ReadMessagesRequest(body, MessagesUse::kCount, messages)) return error;
  const GenerationLimits limits = Limits();
  body = Json();
  ChatRequest chat;
  chat.pictures = std::move(messages.pictures);
  auto error = ReadChatRequest(messages.chat, limits, config_.default_template_kwargs, chat);
  if (!error) error = CheckModel(chat.fields.model);
  if (!error) error = Unwanted(reply);
  if (!error) {
    const auto unwanted = [&] { return Unwanted(reply).has_value(); };
    error = RenderChat(chat, limits, unwanted, prompt);
  }
  return error;
}

std::optional<ApiError> Server::PrepareMessages(Asked& asked, Prepared& out) {
  Json body;
  if (auto error = ReadBody(asked, body)) return error;
  MessagesRequest messages;
  if (auto error = ReadMessagesRequest(body, MessagesUse::kGenerate, messages)) return error;
  body = Json();
  ChatRequest chat;
  chat.pictures = std::move(messages.pictures);
  if (auto error =
          ReadChatRequest(messages.chat, Limits(), config_.default_template_kwargs, chat)) {
    return error;
  }
  out.answer_id = "msg_" + NewName();
  out.shape = MakeMessagesShape({.id = out.answer_id,
                                 .model = names_.first(),
                                 .show_thinking = messages.show_thinking && chat.include_reasoning,
                                 .parallel_tool_calls = chat.parallel_tool_calls});
  if (auto error = PrepareConversation(std::move(chat), out)) return error;
  out.options.continuous_usage = true;  // the first event tells what the prompt was
  return std::nullopt;
}

}  // namespace baltoro
