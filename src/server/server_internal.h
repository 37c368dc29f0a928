#pragma once

// The private types of Server, shared by its source files.

#include "server/server.h"

namespace baltoro {

struct Server::Route {
  std::string_view method;
  std::string_view path;
  void (Server::*handler)(HttpRequest, Reply);
  bool needs_key;
  bool counted;  // in the HTTP metrics
};

struct Server::Prepared {
  std::vector<Request> prompts;  // the request of each one's choice 0
  std::unique_ptr<ResponseShape> shape;
  GenerationOptions options;
  std::string answer_id;
  ActiveTicket ticket;
};

}  // namespace baltoro
