#pragma once

// The private types of Server, shared by its source files.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "grammar/output_constraint.h"
#include "server/request_span.h"
#include "server/server.h"

namespace baltoro {

// Of routes that are there only where the server was started with them.
enum class RouteGate { kNone, kTokenizerInfo, kDevMode, kProfiler };

struct Server::Route {
  std::string_view method;
  std::string_view path;
  void (Server::*handler)(HttpRequest, Reply);
  bool needs_key;
  bool counted;          // in the HTTP metrics, and its errors are remembered
  bool of_page = false;  // for browsers at this address: no page of another origin may read it
  RouteGate gate = RouteGate::kNone;
};

// The assistant's text at the end of a conversation, which an echo repeats and a continued message
// starts with.
std::string LastAssistantText(const Json& messages);

// A request whose body is read.
struct Server::Asked {
  HttpRequest http;                    // its body is given back once that is parsed
  Json body;                           // an object
  std::optional<ApiError> wrong_body;  // instead
};

// A conversation as the engine reads it.
struct Server::ChatPrompt {
  std::vector<TokenId> tokens;
  std::vector<RequestPicture> pictures;
  std::string owner;  // whose request it is: see JobOwner
};

struct Server::Prepared {
  std::vector<Request> prompts;  // the request of each one's choice 0
  std::unique_ptr<ResponseShape> shape;
  GenerationOptions options;
  std::string answer_id;
  TraceContext trace;                 // of the client's headers
  std::unique_ptr<RequestSpan> span;  // null: none is asked for
  OutputConstraint limits;            // all but its grammar
  std::optional<FormSpec> form;       // the grammar, while it is to be found or made
  std::shared_ptr<const CompiledForm> compiled;
  std::thread::id io_thread;
  std::string owner;                    // see JobOwner
  std::function<bool()> unwanted = {};  // while it is prepared: to go on would be for nobody
  ActiveTicket ticket;
};

}  // namespace baltoro
