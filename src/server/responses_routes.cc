// /v1/responses: make an answer, read it again, delete it.

#include <fmt/format.h>

#include <chrono>
#include <random>

#include "base/append.h"
#include "server/input_items.h"
#include "server/responses_request.h"
#include "server/responses_shape.h"
#include "server/route_path.h"
#include "server/server_internal.h"

namespace baltoro {
namespace {

constexpr std::string_view kRoute = "/v1/responses/{id}";

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Not to be guessed: on a server without keys the name is all that protects an answer.
std::string RandomName() {
  std::random_device random;
  std::string out;
  for (int i = 0; i < 4; ++i) AppendFormatted(out, "{:08x}", random());
  return out;
}

ApiError NoSuchResponse(std::string_view param, const std::string& id) {
  return NotFoundError(param, fmt::format("Response with id '{}' not found.", id.substr(0, 256)));
}

// A float as JSON shows it best: 0.6 and not 0.6000000238.
Json Shortest(float value) {
  Result<Json> parsed = ParseJson(fmt::format("{}", value));
  return parsed.ok() ? std::move(parsed).value() : Json(value);
}

}  // namespace

void Server::Responses(HttpRequest request, Reply reply) {
  reply.SetErrorForm([](const ApiError& error) { return ErrorBody(ResponsesFieldNames(error)); });
  Generate(std::move(request), std::move(reply), &Server::PrepareResponse);
}

void Server::ReadResponse(HttpRequest request, Reply reply) {
  const std::string id = *PathArgument(kRoute, request.path);
  if (request.query.find("stream=true") != std::string::npos) {
    return Reject(reply, Rejection::kInvalid,
                  BadRequest("stream", "stream: an answer is streamed only while it is made"));
  }
  const auto stored = responses_.Get(id, keys_.ClientOf(request).value_or(""));
  if (!stored) return Reject(reply, Rejection::kNotFound, NoSuchResponse("id", id));
  reply.SendJson(stored->response);
}

void Server::DeleteResponse(HttpRequest request, Reply reply) {
  const std::string id = *PathArgument(kRoute, request.path);
  if (!responses_.Erase(id, keys_.ClientOf(request).value_or(""))) {
    return Reject(reply, Rejection::kNotFound, NoSuchResponse("id", id));
  }
  reply.SendJson(Json{{"id", id}, {"object", "response"}, {"deleted", true}}.dump());
}

void Server::ListInputItems(HttpRequest request, Reply reply) {
  const std::string id = *PathArgument("/v1/responses/{id}/input_items", request.path);
  auto stored = responses_.Get(id, keys_.ClientOf(request).value_or(""));
  if (!stored) return Reject(reply, Rejection::kNotFound, NoSuchResponse("id", id));
  // A conversation may be long, and all of it is parsed for a page.
  RunOnWorker(std::move(request), std::move(reply),
              [this, id, stored = std::move(stored)](Asked& asked, Reply& answer) {
                std::string page;
                if (const auto error = InputItemsPage(id, *stored, asked.http.query, page)) {
                  return Reject(answer, Rejection::kInvalid, *error);
                }
                answer.SendJson(std::move(page));
              });
}

void Server::CancelResponse(HttpRequest request, Reply reply) {
  const std::string id = *PathArgument("/v1/responses/{id}/cancel", request.path);
  if (!responses_.Get(id, keys_.ClientOf(request).value_or(""))) {
    return Reject(reply, Rejection::kNotFound, NoSuchResponse("id", id));
  }
  Reject(reply, Rejection::kInvalid,
         BadRequest("id",
                    "Cannot cancel a synchronous response: it is complete. One under way is "
                    "cancelled by closing its connection."));
}

std::optional<ApiError> Server::PrepareResponse(Asked& asked, Prepared& out) {
  Json body;
  if (auto error = ReadBody(asked, body)) return error;
  std::string previous;
  if (auto error = ReadPreviousId(body, previous)) return error;
  std::string owner = keys_.ClientOf(asked.http).value_or("");
  EarlierItems earlier;
  if (!previous.empty()) {
    const auto stored = responses_.Get(previous, owner);
    if (!stored) return NoSuchResponse("previous_response_id", previous);
    Result<Json> items = ParseJson(stored->items);
    if (!items.ok()) {
      return BadRequest("previous_response_id",
                        "previous_response_id: the conversation has grown too large: " +
                            items.status().message());
    }
    earlier = {.items = std::move(items).value(), .pictures = stored->conversation.pictures};
  }
  ResponsesRequest read;
  if (auto error = ReadResponsesRequest(std::move(body), std::move(earlier), read)) return error;
  ChatRequest chat;
  chat.pictures = std::move(read.pictures);
  if (auto error = ReadChatRequest(read.chat, Limits(), config_.default_template_kwargs, chat)) {
    return error;
  }
  const std::string name = RandomName();
  out.answer_id = "resp_" + name;
  read.echo["temperature"] = Shortest(chat.fields.sampling.temperature);
  read.echo["top_p"] = Shortest(chat.fields.sampling.top_p);
  ResponsesShapeOptions options{.id = out.answer_id,
                                .name = name,
                                .model = names_.first(),
                                .created = UnixNow(),
                                .echo = std::move(read.echo),
                                .show_reasoning = chat.include_reasoning,
                                .parallel_tool_calls = chat.parallel_tool_calls,
                                .on_done = {}};
  if (read.store) {
    const Json& items = read.conversation.items;
    std::string client = JobOwner(asked.http);
    Result<KeptConversation> kept =
        responses_.Keep(client, items.dump(-1, ' ', false, Json::error_handler_t::replace),
                        std::move(read.conversation.pictures));
    if (!kept.ok()) return FromStatus(kept.status());
    // Shared, because a function can be copied.
    const auto held = std::make_shared<KeptConversation>(std::move(kept).value());
    options.on_done = [this, id = out.answer_id, owner = std::move(owner),
                       client = std::move(client), input_items = items.size(),
                       held](std::string response, const std::string& output) {
      // Two lists one after the other: "[a,b]" and "[c]".
      std::string all = std::move(held->items);
      all.pop_back();
      if (all.size() > 1 && output.size() > 2) all.push_back(',');
      all.append(output, 1);
      responses_.Put(id, owner, client,
                     {.response = std::move(response),
                      .items = std::move(all),
                      .input_items = input_items,
                      .conversation = std::move(*held)});
    };
  }
  read = {};
  out.shape = MakeResponsesShape(std::move(options));
  return PrepareConversation(std::move(chat), out);
}

}  // namespace baltoro
