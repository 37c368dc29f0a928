#pragma once

// What the request parser makes of a byte string, as text: used to state that the outcome does not
// depend on how the bytes were split.

#include <string>
#include <string_view>

#include "net/http_parser.h"

namespace baltoro::test {

// `next_piece(left)` says how many of the `left` bytes the next Feed gets (at least 1).
template <typename NextPiece>
std::string ParseOutcome(std::string_view bytes, const HttpLimits& limits, NextPiece next_piece) {
  HttpParser parser(HttpParser::Kind::kRequest, limits);
  std::string outcome;
  while (!bytes.empty() && !parser.failed()) {
    std::string_view piece = bytes.substr(0, next_piece(bytes.size()));
    bytes.remove_prefix(piece.size());
    while (!piece.empty() && !parser.failed()) {
      piece.remove_prefix(parser.Feed(piece));
      if (!parser.done()) continue;
      outcome += parser.keep_alive() ? "request " : "last request ";
      const HttpRequest request = parser.TakeRequest();
      outcome += request.method + " " + request.target + " " + request.path + " " + request.query;
      for (const auto& [name, value] : request.headers) outcome += "\n" + name + ": " + value;
      outcome += "\n[" + request.body + "]\n";
      parser.Reset();
    }
  }
  if (parser.failed()) {
    outcome += "failed " + std::to_string(parser.error_status()) + " ";
    outcome += parser.error_reason();
  } else if (parser.started()) {
    outcome += "unfinished, body " + std::to_string(parser.body_received());
  }
  return outcome;
}

}  // namespace baltoro::test
