#pragma once

// A strict, incremental HTTP/1.1 parser for one message at a time. What is ambiguous is refused
// rather than guessed, because two parsers that guess differently are how requests are smuggled.
// The outcome depends on the bytes alone, never on how they were split over calls.
//
// Refused: bare LF or CR, NUL and other control characters, obs-fold, a blank before the colon,
// Content-Length together with Transfer-Encoding, two of either, a Transfer-Encoding other than
// "chunked", no Host (HTTP/1.1) or two. No allocation is sized by what a peer claims.
//
// Not thread-safe; one parser belongs to one connection.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "net/http_message.h"

namespace baltoro {

struct HttpLimits {
  size_t request_line_bytes = 8 << 10;   // without CRLF; over: 414
  size_t header_block_bytes = 32 << 10;  // all header lines with their CRLFs; over: 431
  size_t header_count = 100;             // over: 431
  size_t header_bytes = 8 << 10;         // one line without CRLF; over: 431
  size_t body_bytes = 32 << 20;          // over: 413, at once if Content-Length says so
  size_t chunk_line_bytes = 256;         // size and extension without CRLF; over: 400
  size_t chunk_bytes = 16 << 20;         // over: 400
};

class HttpParser {
 public:
  enum class Kind { kRequest, kResponse };

  explicit HttpParser(Kind kind, const HttpLimits& limits = {}) : kind_(kind), limits_(limits) {}

  // Takes bytes up to the end of the message or the first error; returns how many it took. What is
  // left belongs to the next message.
  size_t Feed(std::string_view bytes);
  // The peer has closed. Completes a response whose body runs to the end of the connection, and
  // fails every other unfinished message.
  void FeedEnd();
  // Ready for the next message.
  void Reset();

  bool started() const { return started_; }      // at least one byte of this message came
  bool head_done() const { return head_done_; }  // start line and headers are complete
  bool done() const { return state_ == State::kDone; }
  bool failed() const { return state_ == State::kFailed; }
  int error_status() const { return error_status_; }           // what a server answers
  std::string_view error_reason() const { return error_; }     // one of a fixed set of sentences
  uint64_t body_received() const { return body_received_; }    // without framing
  bool keep_alive() const { return keep_alive_; }              // when head_done()
  bool http10() const { return minor_version_ == 0; }          // when head_done()
  bool expects_continue() const { return expects_continue_; }  // when head_done()

  const std::string& method() const { return method_; }
  const std::string& path() const { return path_; }
  int status() const { return status_; }  // of a response
  const HttpHeaders& headers() const { return headers_; }
  // Body bytes so far. A reader that streams may take and clear them after every Feed.
  std::string& body() { return body_; }
  // Response: the answer has no body whatever its headers say (to HEAD). Call before Feed.
  void set_no_body() { no_body_ = true; }

  // The finished request; `peer` is left empty. Once per message.
  HttpRequest TakeRequest();

 private:
  enum class State {
    kStartLine,
    kHeaderLine,
    kFixedBody,
    kChunkLine,
    kChunkData,
    kChunkEnd,
    kTrailerLine,
    kBodyToEnd,
    kDone,
    kFailed
  };

  void Fail(int status, const char* reason);
  size_t FeedLine(std::string_view bytes);
  size_t FeedBody(std::string_view bytes);
  size_t LineLimit() const;
  void FailLineTooLong();
  void OnLine(std::string_view line);
  void OnRequestLine(std::string_view line);
  void OnStatusLine(std::string_view line);
  bool OnTarget(std::string_view target);
  bool OnVersion(std::string_view version);
  bool CountHeaderLine(std::string_view line);
  void OnHeaderLine(std::string_view line);
  bool OnFramingHeader(std::string_view name, std::string_view value);
  bool OnContentLength(std::string_view value);
  void OnConnection(std::string_view value);
  void OnHeadersEnd();
  void ChooseBody();
  void OnChunkLine(std::string_view line);

  Kind kind_;
  HttpLimits limits_;
  State state_ = State::kStartLine;
  std::string line_;  // the line being collected, at most its limit plus CRLF
  bool started_ = false;
  bool skipped_empty_line_ = false;
  bool head_done_ = false;
  bool no_body_ = false;

  std::string method_, target_, path_, query_;
  int status_ = 0;
  int minor_version_ = 1;
  HttpHeaders headers_;
  size_t header_lines_ = 0;
  size_t header_block_ = 0;
  int hosts_ = 0;
  bool has_length_ = false;
  bool chunked_ = false;
  bool keep_alive_ = true;
  bool expects_continue_ = false;
  bool connection_close_ = false;
  bool connection_keep_alive_ = false;

  uint64_t left_ = 0;  // of the fixed body or of the current chunk
  uint64_t body_received_ = 0;
  std::string body_;
  int error_status_ = 0;
  const char* error_ = "";
};

}  // namespace baltoro
