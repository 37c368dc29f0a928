#pragma once

// The private types of Server, shared by its source files.

#include "server/server.h"

namespace baltoro {

struct Server::Route {
  std::string_view method;
  std::string_view path;
  void (Server::*handler)(HttpRequest, Responder);
  bool needs_key;
};

struct Server::Prepared {
  std::vector<Request> requests;  // one per choice
  std::unique_ptr<ResponseShape> shape;
  GenerationOptions options;
  std::string answer_id;
};

}  // namespace baltoro
