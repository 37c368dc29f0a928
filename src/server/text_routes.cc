// /tokenize and /detokenize.

#include "base/utf8.h"
#include "server/server_internal.h"

namespace baltoro {

void Server::Tokenize(HttpRequest request, Responder responder) {
  Json body;
  if (const auto error = ReadBody(request, body)) return Refuse(request, responder, *error);
  if (!body.is_object())
    return Refuse(request, responder, BadRequest("", "the body must be a JSON object"));
  FieldReader reader(body);
  std::string model;
  std::string prompt;
  bool token_strings = false;
  reader.String("model", model, 4096);
  reader.Bool("return_token_strs", token_strings);
  const bool chat = reader.Find("messages") != nullptr;
  ChatRequest conversation;
  if (chat) {
    ReadConversation(reader, config_.default_template_kwargs, conversation);
  } else {
    if (reader.Find("prompt") == nullptr) reader.Fail("prompt", "is required (or messages)");
    reader.String("prompt", prompt, size_t{32} << 20);
  }
  if (!reader.ok()) return Refuse(request, responder, *reader.error());
  if (const auto error = CheckModel(model)) return Refuse(request, responder, *error);

  std::vector<TokenId> ids;
  if (chat) {
    if (const auto error = RenderChat(conversation, ids)) return Refuse(request, responder, *error);
  } else {
    ids = tokenizer_->Encode(prompt);
  }
  const Engine* engine = engine_;
  std::string out = R"({"count":)" + std::to_string(ids.size()) + R"(,"max_model_len":)" +
                    (engine == nullptr ? "null" : std::to_string(engine->info().max_model_len)) +
                    R"(,"tokens":)";
  AppendTokenIds(out, ids);
  out += R"(,"token_strs":)";
  if (token_strings) {
    out.push_back('[');
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out.push_back(',');
      AppendJsonString(out, TokenText(*tokenizer_, ids[i]));
    }
    out += "]}";
  } else {
    out += "null}";
  }
  Answer(request, responder, {.status = 200, .headers = {}, .body = std::move(out)});
}

void Server::Detokenize(HttpRequest request, Responder responder) {
  Json body;
  if (const auto error = ReadBody(request, body)) return Refuse(request, responder, *error);
  if (!body.is_object())
    return Refuse(request, responder, BadRequest("", "the body must be a JSON object"));
  FieldReader reader(body);
  std::string model;
  std::vector<TokenId> ids;
  reader.String("model", model, 4096);
  if (reader.Find("tokens") == nullptr) reader.Fail("tokens", "is required");
  reader.TokenIds("tokens", ids, 4 << 20, tokenizer_->vocab_size());
  if (!reader.ok()) return Refuse(request, responder, *reader.error());
  if (const auto error = CheckModel(model)) return Refuse(request, responder, *error);
  std::string out = R"({"prompt":)";
  AppendJsonString(out, tokenizer_->Decode(ids, /*skip_special=*/false));
  out += "}";
  Answer(request, responder, {.status = 200, .headers = {}, .body = std::move(out)});
}

}  // namespace baltoro
