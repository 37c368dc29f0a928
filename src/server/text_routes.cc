// What becomes of text: /tokenize, /detokenize, /tokenizer_info, and prompts that are only
// rendered.

#include "server/refused_fields.h"
#include "server/server_internal.h"

namespace baltoro {
namespace {

constexpr size_t kPromptBytesMax = size_t{32} << 20;
constexpr size_t kDetokenizeIdsMax = 4 << 20;

std::optional<ApiError> NoTokenizer(std::string_view param) {
  return BadRequest(param, std::string(param) + ": this model has no tokenizer");
}

}  // namespace

void Server::Tokenize(HttpRequest request, Reply reply) {
  RunPreparing(std::move(request), std::move(reply), [this](Asked& asked, Reply& answer) {
    std::string body;
    if (const auto error = TokenizeBody(asked, answer, body)) {
      return Reject(answer, Rejection::kInvalid, *error);
    }
    answer.SendJson(std::move(body));
  });
}

void Server::Detokenize(HttpRequest request, Reply reply) {
  RunPreparing(std::move(request), std::move(reply), [this](Asked& asked, Reply& answer) {
    std::string body;
    if (const auto error = DetokenizeBody(asked, body)) {
      return Reject(answer, Rejection::kInvalid, *error);
    }
    answer.SendJson(std::move(body));
  });
}

void Server::TokenizerInfo(HttpRequest /*request*/, Reply reply) {
  reply.SendJson(config_.tokenizer_info.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Server::RenderChatCompletion(HttpRequest request, Reply reply) {
  Render(std::move(request), std::move(reply), &Server::PrepareChat, /*as_list=*/false);
}

void Server::RenderCompletion(HttpRequest request, Reply reply) {
  Render(std::move(request), std::move(reply), &Server::PrepareCompletion, /*as_list=*/true);
}

void Server::RenderResponse(HttpRequest request, Reply reply) {
  Render(std::move(request), std::move(reply), &Server::PrepareResponse, /*as_list=*/false);
}

void Server::Render(HttpRequest request, Reply reply, Prepare prepare, bool as_list) {
  if (!Serving()) {
    return Reject(reply, draining_ ? Rejection::kDraining : Rejection::kNotReady, NotServing());
  }
  RunPreparing(std::move(request), std::move(reply),
               [this, prepare, as_list](Asked& asked, Reply& answer) {
                 Prepared prepared;
                 prepared.owner = JobOwner(asked.http);
                 prepared.unwanted = [this, &answer] { return Unwanted(answer).has_value(); };
                 const auto error = (this->*prepare)(asked, prepared);
                 if (const auto unwanted = Unwanted(answer)) {
                   return Reject(answer, Rejection::kDraining, *unwanted);
                 }
                 if (error) return Reject(answer, Rejection::kInvalid, *error);
                 std::string body;
                 for (const Request& prompt : prepared.prompts) {
                   body += body.empty() ? "" : ",";
                   AppendRendered(body, prepared, prompt);
                 }
                 answer.SendJson(as_list ? "[" + body + "]" : body);
               });
}

// As upstream, and the prompt as text.
void Server::AppendRendered(std::string& out,
                            const Prepared& prepared,
                            const Request& prompt) const {
  const SamplingParams& sampling = prompt.sampling;
  const Json params = {{"n", prepared.options.n},
                       {"temperature", sampling.temperature},
                       {"top_p", sampling.top_p},
                       {"top_k", sampling.top_k},
                       {"min_p", sampling.min_p},
                       {"presence_penalty", sampling.presence_penalty},
                       {"frequency_penalty", sampling.frequency_penalty},
                       {"repetition_penalty", sampling.repetition_penalty},
                       {"max_tokens", prompt.stop.max_tokens},
                       {"min_tokens", prompt.stop.min_tokens}};
  out += R"({"request_id":)";
  AppendJsonString(out, prepared.answer_id);
  out += R"(,"model":)";
  AppendJsonString(out, names_.first());
  out += R"(,"token_ids":)";
  AppendTokenIds(out, prompt.prompt);
  out += R"(,"prompt":)";
  AppendJsonString(out, tokenizer_->Decode(prompt.prompt, /*skip_special=*/false));
  out += R"(,"sampling_params":)" + params.dump() + "}";
}

std::optional<ApiError> Server::TokenizeBody(Asked& asked, const Reply& reply, std::string& out) {
  Json body;
  if (auto error = ReadBody(asked, body)) return error;
  FieldReader reader(body);
  std::optional<std::string> model;
  std::string prompt;
  bool token_strings = false;
  ReadModelName(reader, model);
  reader.Bool("return_token_strs", token_strings);
  const bool chat = reader.Find("messages") != nullptr;
  ChatRequest conversation;
  if (chat) {
    RefuseFields(reader);
    ReadConversation(reader, config_.default_template_kwargs, conversation);
  } else {
    if (reader.Find("prompt") == nullptr) reader.Fail("prompt", "is required (or messages)");
    reader.String("prompt", prompt, kPromptBytesMax);
  }
  if (!reader.ok()) return reader.error();
  if (auto error = CheckModel(model)) return error;
  if (auto unwanted = Unwanted(reply)) return unwanted;
  if (tokenizer_->empty()) return NoTokenizer(chat ? "messages" : "prompt");

  const GenerationLimits limits = Limits();
  std::vector<TokenId> ids;
  if (chat) {
    ChatPrompt rendered;
    rendered.owner = JobOwner(asked.http);
    const auto unwanted = [&] { return Unwanted(reply).has_value(); };
    if (auto error = RenderChat(conversation, limits, unwanted, rendered)) return error;
    ids = std::move(rendered.tokens);
  } else {
    ids = tokenizer_->Encode(prompt);
  }
  out = R"({"count":)" + std::to_string(ids.size()) + R"(,"max_model_len":)" +
        (limits.max_model_len == 0 ? "null" : std::to_string(limits.max_model_len)) +
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
  return std::nullopt;
}

std::optional<ApiError> Server::DetokenizeBody(Asked& asked, std::string& out) const {
  Json body;
  if (auto error = ReadBody(asked, body)) return error;
  if (tokenizer_->empty()) return NoTokenizer("tokens");
  FieldReader reader(body);
  std::optional<std::string> model;
  std::vector<TokenId> ids;
  ReadModelName(reader, model);
  if (reader.Find("tokens") == nullptr) reader.Fail("tokens", "is required");
  reader.TokenIds("tokens", ids, kDetokenizeIdsMax, tokenizer_->vocab_size());
  if (!reader.ok()) return reader.error();
  if (auto error = CheckModel(model)) return error;
  out = R"({"prompt":)";
  AppendJsonString(out, tokenizer_->Decode(ids, /*skip_special=*/false));
  out += "}";
  return std::nullopt;
}

}  // namespace baltoro
