// The parsers of the network on arbitrary bytes: requests, responses and event streams. The outcome
// must not depend on how the bytes are split, and no limit may be exceeded. The first two bytes
// choose the parser and the split, the rest is what the peer sends.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "net/http_parser.h"
#include "net/sse.h"
#include "support/parse_outcome.h"

namespace {

using baltoro::HttpLimits;
using baltoro::HttpParser;

// Small enough for a fuzzer to reach.
constexpr HttpLimits kLimits{.request_line_bytes = 64,
                             .header_block_bytes = 200,
                             .header_count = 8,
                             .header_bytes = 80,
                             .body_bytes = 100,
                             .chunk_line_bytes = 16,
                             .chunk_bytes = 64};

void Require(bool condition) {
  if (!condition) std::abort();
}

template <typename NextPiece>
std::string ResponseOutcome(std::string_view bytes, NextPiece next_piece) {
  HttpParser parser(HttpParser::Kind::kResponse, kLimits);
  while (!bytes.empty() && !parser.done() && !parser.failed()) {
    const std::string_view piece = bytes.substr(0, next_piece(bytes.size()));
    const size_t used = parser.Feed(piece);
    Require(used <= piece.size());
    Require(used == piece.size() || parser.done() || parser.failed());
    bytes.remove_prefix(piece.size());
  }
  parser.FeedEnd();
  Require(parser.done() != parser.failed());
  Require(parser.body().size() <= kLimits.body_bytes);
  Require(parser.headers().size() <= kLimits.header_count);
  if (parser.failed()) return std::string(parser.error_reason());
  return std::to_string(parser.status()) + parser.body();
}

template <typename NextPiece>
std::string SseOutcome(std::string_view bytes, NextPiece next_piece) {
  baltoro::SseParser parser;
  std::string outcome;
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, next_piece(bytes.size()));
    parser.Feed(piece, [&](const baltoro::SseEvent& event) {
      outcome += event.event + "|" + event.data + "|" + event.id + ";";
      return true;
    });
    bytes.remove_prefix(piece.size());
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::minstd_rand random(data[1]);
  const auto whole = [](size_t left) { return left; };
  const auto pieces = [&](size_t left) { return 1 + random() % left; };
  switch (data[0] % 3) {
    case 0:
      Require(baltoro::test::ParseOutcome(bytes, kLimits, whole) ==
              baltoro::test::ParseOutcome(bytes, kLimits, pieces));
      break;
    case 1:
      Require(ResponseOutcome(bytes, whole) == ResponseOutcome(bytes, pieces));
      break;
    default:
      Require(SseOutcome(bytes, whole) == SseOutcome(bytes, pieces));
      break;
  }
  return 0;
}
