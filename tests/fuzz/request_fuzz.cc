// Bodies of requests out of arbitrary bytes, as every API reads them, down to what the engine is
// asked. Refused with a reason or accepted within the limits; what is accepted says the same when
// it is written as JSON and read again, and what was made regular stays as it is.
//
// The first byte chooses the API, the second what the model is like; the rest is the body.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"
#include "request/wire.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/messages_request.h"
#include "server/messages_shape.h"
#include "server/responses_request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/tool_call_ids.h"

namespace {

using namespace baltoro;  // NOLINT(google-build-using-namespace): a program of its own

const Tokenizer& Words() {
  static const std::unique_ptr<Tokenizer> kTokenizer = [] {
    auto loaded = Tokenizer::Load(BT_POCKET_MODEL);
    BT_CHECK(loaded.ok());
    return std::move(loaded).value();
  }();
  return *kTokenizer;
}

const ChatTemplate& Template() {
  static const std::unique_ptr<ChatTemplate> kTemplate = [] {
    auto loaded = ChatTemplate::LoadFromDir(BT_POCKET_MODEL);
    BT_CHECK(loaded.ok());
    return std::move(loaded).value();
  }();
  return *kTemplate;
}

GenerationLimits LimitsOf(uint8_t byte) {
  GenerationLimits limits;
  limits.vocab_size = Words().vocab_size();
  limits.max_model_len = (byte & 1) != 0 ? 64 : 4096;
  if ((byte & 2) != 0) limits.max_logprobs = -1;
  if ((byte & 4) != 0) limits.max_tokens_cap = 7;
  limits.has_text = (byte & 8) == 0;
  return limits;
}

void CheckRefusal(const ApiError& error) {
  BT_CHECK(error.status >= 400 && error.status < 500);
  BT_CHECK(!error.message.empty());
  for (const std::string& body : {ErrorBody(error), MessagesErrorBody(error)}) {
    BT_CHECK(IsValidUtf8(body) && ParseJson(body).ok());
  }
}

void CheckFields(const GenerationFields& fields, const GenerationLimits& limits) {
  const SamplingParams& sampling = fields.sampling;
  const auto within = [](float value, double min, double max) {
    return std::isfinite(value) && value >= min && value <= max;
  };
  BT_CHECK(within(sampling.temperature, 0, 100));
  BT_CHECK(within(sampling.top_p, 0, 1) && within(sampling.min_p, 0, 1));
  BT_CHECK(within(sampling.presence_penalty, -2, 2) && within(sampling.frequency_penalty, -2, 2));
  BT_CHECK(within(sampling.repetition_penalty, 0, 100));
  BT_CHECK(sampling.top_k >= 0);
  const int64_t logprobs_max = limits.max_logprobs < 0 ? limits.vocab_size : limits.max_logprobs;
  BT_CHECK(sampling.logprobs >= -1 && sampling.logprobs <= logprobs_max);
  BT_CHECK(sampling.prompt_logprobs >= -1 && sampling.prompt_logprobs <= logprobs_max);
  const auto known = [&](TokenId id) { return id >= 0 && id < limits.vocab_size; };
  for (const auto& [id, bias] : sampling.logit_bias) {
    BT_CHECK(known(id) && within(bias, -100, 100));
  }
  for (const TokenId id : sampling.allowed_token_ids) BT_CHECK(known(id));
  for (const TokenId id : fields.stop_token_ids) BT_CHECK(known(id));
  BT_CHECK(fields.n >= 1 && fields.n <= limits.n_max);
  BT_CHECK(fields.max_tokens == -1 || fields.max_tokens >= 1);
  BT_CHECK(fields.min_tokens >= 0 && fields.min_tokens <= limits.max_model_len);
  BT_CHECK(fields.stop.size() <= 16 && fields.bad_words.size() <= 128);
  for (const std::string& stop : fields.stop) BT_CHECK(!stop.empty());
  BT_CHECK(IsPrintable(fields.request_id));
}

// What the engine would be asked, over the wire and back.
void CheckEngineRequest(GenerationFields fields,
                        const GenerationLimits& limits,
                        std::vector<TokenId> prompt) {
  TruncatePrompt(fields, limits, prompt);
  const auto size = static_cast<int64_t>(prompt.size());
  if (const auto error = FitToPrompt(size, limits, std::nullopt, fields)) {
    return CheckRefusal(*error);
  }
  BT_CHECK(fields.max_tokens >= 1 && size + 1 <= limits.max_model_len);
  BT_CHECK(fields.min_tokens <= fields.max_tokens);
  const Request request = ForChoice(MakeRequest(fields, std::move(prompt), {1}, 5), fields.n - 1);
  WireWriter writer;
  Encode(writer, request);
  const std::string bytes = writer.Take();
  WireReader reader(bytes);
  BT_CHECK(DecodeRequest(reader) == request);
  BT_CHECK(reader.Finish("request").ok());
}

bool ReadChat(const Json& body, const GenerationLimits& limits, ChatRequest& out) {
  const auto error = ReadChatRequest(body, limits, Json::object(), out);
  if (error) CheckRefusal(*error);
  return !error;
}

void CheckChat(const Json& body, const GenerationLimits& limits) {
  ChatRequest chat;
  if (!ReadChat(body, limits, chat)) return;
  CheckFields(chat.fields, limits);
  BT_CHECK(chat.messages.is_array() && !chat.messages.empty());
  BT_CHECK(chat.tools.is_null() || !chat.tools.empty());
  BT_CHECK(chat.template_kwargs.is_object());
  BT_CHECK((chat.tool_choice == ToolChoice::kNamed) == !chat.named_tool.empty());

  ChatRequest again;
  BT_CHECK(ReadChat(Json::parse(body.dump()), limits, again));
  BT_CHECK(again == chat);
  // Messages are made regular once. (Of a picture the regular form has the place alone.)
  if (chat.pictures.empty()) {
    Json regular = body;
    regular["messages"] = chat.messages;
    ChatRequest third;
    BT_CHECK(ReadChat(regular, limits, third));
    BT_CHECK(third == chat);
  }

  const int64_t calls = NormaliseToolCallIds(chat.messages);
  BT_CHECK(calls == CountToolCalls(chat.messages));
  if (!limits.has_text) return;
  const auto rendered = Template().Render({.messages = &chat.messages,
                                           .tools = chat.tools.is_null() ? nullptr : &chat.tools,
                                           .extra = &chat.template_kwargs,
                                           .add_generation_prompt = chat.add_generation_prompt});
  if (!rendered.ok()) {
    BT_CHECK(rendered.status().code() == Code::kInvalidArgument);
    return CheckRefusal(BadRequest("messages", rendered.status().message()));
  }
  CheckEngineRequest(chat.fields, limits, Words().EncodeSegments(rendered.value()));
}

void CheckCompletion(const Json& body, const GenerationLimits& limits) {
  CompletionRequest request;
  if (const auto error = ReadCompletionRequest(body, limits, request)) return CheckRefusal(*error);
  CheckFields(request.fields, limits);
  CompletionRequest again;
  BT_CHECK(!ReadCompletionRequest(Json::parse(body.dump()), limits, again));
  BT_CHECK(again == request);
  BT_CHECK(!request.prompts.empty() && request.prompts.size() <= 64);
  for (const CompletionPrompt& prompt : request.prompts) {
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
      for (const TokenId id : *ids) BT_CHECK(id >= 0 && id < limits.vocab_size);
      CheckEngineRequest(request.fields, limits, *ids);
    } else {
      BT_CHECK(limits.has_text);
      CheckEngineRequest(request.fields, limits, Words().Encode(std::get<std::string>(prompt)));
    }
  }
}

void CheckMessages(const Json& body, const GenerationLimits& limits) {
  MessagesRequest request, counted;
  const auto error = ReadMessagesRequest(body, MessagesUse::kGenerate, request);
  const auto count_error = ReadMessagesRequest(body, MessagesUse::kCount, counted);
  if (count_error) CheckRefusal(*count_error);
  if (error) return CheckRefusal(*error);
  BT_CHECK(!count_error);  // counting asks for less
  CheckChat(request.chat, limits);
}

void CheckResponses(const Json& body, const GenerationLimits& limits) {
  std::string previous;
  if (const auto error = ReadPreviousId(body, previous)) return CheckRefusal(*error);
  ResponsesRequest request;
  if (const auto error = ReadResponsesRequest(body, {}, request)) {
    return CheckRefusal(*error);
  }
  const EarlierItems& earlier = request.conversation;
  BT_CHECK(earlier.items.is_array());
  for (const Json& item : earlier.items) BT_CHECK(item.is_object());
  CheckChat(request.chat, limits);
  // The next turn continues these items with the same input.
  ResponsesRequest next;
  if (const auto error = ReadResponsesRequest(body, earlier, next)) {
    return CheckRefusal(*error);
  }
  BT_CHECK(next.conversation.items.size() == 2 * earlier.items.size());
  BT_CHECK(next.conversation.pictures.size() == 2 * earlier.pictures.size());
}

void CheckTokenLists(const Json& body, const GenerationLimits& limits) {
  FieldReader reader(body);
  std::vector<TokenId> ids;
  reader.TokenIds("tokens", ids, 1000, limits.vocab_size);
  ChatRequest conversation;
  if (reader.Find("messages") != nullptr) ReadConversation(reader, Json::object(), conversation);
  if (!reader.ok()) return CheckRefusal(*reader.error());
  BT_CHECK(ids.size() <= 1000);
  for (const TokenId id : ids) BT_CHECK(id >= 0 && id < limits.vocab_size);
  BT_CHECK(IsValidUtf8(Words().Decode(ids, false)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto body = ParseJson(std::string_view(reinterpret_cast<const char*>(data) + 2, size - 2));
  if (!body.ok()) {
    CheckRefusal(FromStatus(body.status()));
    return 0;
  }
  const GenerationLimits limits = LimitsOf(data[1]);
  if (!body.value().is_object()) {  // the door refuses the others for all APIs
    ChatRequest chat;
    BT_CHECK(!ReadChat(body.value(), limits, chat));
    return 0;
  }
  switch (data[0] % 5) {
    case 0:
      CheckChat(body.value(), limits);
      break;
    case 1:
      CheckCompletion(body.value(), limits);
      break;
    case 2:
      CheckMessages(body.value(), limits);
      break;
    case 3:
      CheckResponses(body.value(), limits);
      break;
    default:
      CheckTokenLists(body.value(), limits);
      break;
  }
  return 0;
}
