#include "net/http_parser.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/percent.h"
#include "base/trim.h"

namespace baltoro {
namespace {

enum CharClass : uint8_t { kToken = 1, kTarget = 2, kValue = 4, kHost = 8 };

constexpr std::array<uint8_t, 256> MakeClasses() {
  std::array<uint8_t, 256> classes{};
  const auto add = [&](std::string_view chars, int what) {
    for (const char c : chars) classes[static_cast<uint8_t>(c)] |= static_cast<uint8_t>(what);
  };
  for (int c = 0x21; c < 0x7f; ++c) classes[static_cast<size_t>(c)] = kTarget | kValue;
  for (int c = 0x80; c < 0x100; ++c) classes[static_cast<size_t>(c)] = kValue;
  add(" \t", kValue);
  add("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", kToken | kHost);
  add("!#$%&'*+-.^_`|~", kToken);
  add("-._~!$&'()*+,;=:%[]", kHost);
  return classes;
}
constexpr std::array<uint8_t, 256> kClasses = MakeClasses();
constexpr std::string_view kBlanks = " \t";

bool AllOf(std::string_view text, CharClass what) {
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return kClasses[static_cast<uint8_t>(c)] & what; });
}

std::string ToLower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

}  // namespace

void HttpParser::Reset() {
  HttpParser fresh(kind_, limits_);
  fresh.line_.swap(line_);  // keeps the line's memory
  fresh.line_.clear();
  *this = std::move(fresh);
}

void HttpParser::Fail(int status, const char* reason) {
  state_ = State::kFailed;
  error_status_ = status;
  error_ = reason;
}

size_t HttpParser::Feed(std::string_view bytes) {
  size_t used = 0;
  while (used < bytes.size() && !done() && !failed()) {
    started_ = true;
    const std::string_view rest = bytes.substr(used);
    switch (state_) {
      case State::kStartLine:
      case State::kHeaderLine:
      case State::kChunkLine:
      case State::kChunkEnd:
      case State::kTrailerLine:
        used += FeedLine(rest);
        break;
      case State::kFixedBody:
      case State::kChunkData:
      case State::kBodyToEnd:
        used += FeedBody(rest);
        break;
      case State::kDone:
      case State::kFailed:
        break;
    }
  }
  return used;
}

void HttpParser::FeedEnd() {
  if (done() || failed()) return;
  if (state_ == State::kBodyToEnd) {
    state_ = State::kDone;
    return;
  }
  Fail(400, "the connection ended inside a message");
}

size_t HttpParser::FeedBody(std::string_view bytes) {
  const bool to_end = state_ == State::kBodyToEnd;
  const size_t count = to_end ? bytes.size() : std::min<uint64_t>(left_, bytes.size());
  if (body_received_ + count > limits_.body_bytes) {
    Fail(413, "the body is longer than the limit");
    return 0;
  }
  body_.append(bytes.substr(0, count));
  body_received_ += count;
  if (to_end) return count;
  left_ -= count;
  if (left_ == 0) state_ = state_ == State::kFixedBody ? State::kDone : State::kChunkEnd;
  return count;
}

size_t HttpParser::LineLimit() const {
  switch (state_) {
    case State::kStartLine:
      return limits_.request_line_bytes;
    case State::kChunkLine:
      return limits_.chunk_line_bytes;
    case State::kChunkEnd:
      return 0;
    default:
      return limits_.header_bytes;
  }
}

void HttpParser::FailLineTooLong() {
  switch (state_) {
    case State::kStartLine:
      return Fail(414, "the request line is longer than the limit");
    case State::kChunkLine:
      return Fail(400, "a chunk's size line is longer than the limit");
    case State::kChunkEnd:
      return Fail(400, "a chunk does not end where its size says");
    default:
      return Fail(431, "a header is longer than the limit");
  }
}

// Collects up to and including LF. The length is judged by the bytes before LF, so that the verdict
// falls at the same byte however the input was split.
size_t HttpParser::FeedLine(std::string_view bytes) {
  if (state_ == State::kStartLine && line_.empty() && bytes[0] != '\r' &&
      !AllOf(bytes.substr(0, 1), kToken)) {
    Fail(400, "this is not HTTP");  // TLS, say, which would never end its first line
    return 0;
  }
  const size_t lf = bytes.find('\n');
  const bool complete = lf != std::string_view::npos;
  const size_t before_lf = complete ? lf : bytes.size();
  const size_t limit = LineLimit();
  if (line_.size() + before_lf > limit + 1) {  // one more for CR
    FailLineTooLong();
    return 0;
  }
  line_.append(bytes.substr(0, before_lf));
  if (!complete) return before_lf;
  if (line_.empty() || line_.back() != '\r') {
    Fail(400, "a line does not end in CR LF");
    return lf + 1;
  }
  OnLine(std::string_view(line_).substr(0, line_.size() - 1));
  line_.clear();
  return lf + 1;
}

void HttpParser::OnLine(std::string_view line) {
  switch (state_) {
    case State::kStartLine:
      // Some clients send one CR LF too many after a body.
      if (line.empty() && !skipped_empty_line_) {
        skipped_empty_line_ = true;
        started_ = false;
        return;
      }
      return kind_ == Kind::kRequest ? OnRequestLine(line) : OnStatusLine(line);
    case State::kHeaderLine:
      return line.empty() ? OnHeadersEnd() : OnHeaderLine(line);
    case State::kTrailerLine:  // checked and dropped: nobody here reads trailers
      if (line.empty()) {
        state_ = State::kDone;
      } else if (CountHeaderLine(line)) {
        const size_t colon = line.find(':');
        if (colon == 0 || colon == std::string_view::npos ||
            !AllOf(line.substr(0, colon), kToken) || !AllOf(line.substr(colon + 1), kValue)) {
          Fail(400, "a trailer is malformed");
        }
      }
      return;
    case State::kChunkLine:
      return OnChunkLine(line);
    case State::kChunkEnd:
      state_ = State::kChunkLine;
      return;
    default:
      BT_CHECK(false);
  }
}

void HttpParser::OnRequestLine(std::string_view line) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return Fail(400, "the request line is not METHOD TARGET VERSION");
  }
  const std::string_view method = line.substr(0, first);
  if (method.empty() || method.size() > 32 || !AllOf(method, kToken)) {
    return Fail(400, "the method is malformed");
  }
  method_ = method;
  if (!OnTarget(line.substr(first + 1, last - first - 1))) return;
  if (!OnVersion(line.substr(last + 1))) return;
  state_ = State::kHeaderLine;
}

bool HttpParser::OnTarget(std::string_view target) {
  if (target.empty() || !AllOf(target, kTarget) || target.find('#') != std::string_view::npos) {
    Fail(400, "the request target is malformed");
    return false;
  }
  target_ = target;
  std::string_view path = target;
  if (EqualsIgnoreCase(path.substr(0, 7), "http://")) {  // absolute form: the authority is not ours
    path.remove_prefix(7);
    const size_t slash = path.find_first_of("/?");
    if (slash == 0 || !AllOf(path.substr(0, slash), kHost)) {
      Fail(400, "the request target is malformed");
      return false;
    }
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash);
    if (path.empty() || path[0] == '?') path_ += '/';
  } else if (path[0] != '/' && !(path == "*" && method_ == "OPTIONS")) {
    Fail(400, "the request target is malformed");
    return false;
  }
  const size_t question = path.find('?');
  path_ += path.substr(0, question);
  if (question != std::string_view::npos) query_ = path.substr(question + 1);
  return true;
}

bool HttpParser::OnVersion(std::string_view version) {
  if (version == "HTTP/1.1" || version == "HTTP/1.0") {
    minor_version_ = version.back() - '0';
    return true;
  }
  const bool shaped = version.size() == 8 && version.substr(0, 5) == "HTTP/" && version[6] == '.' &&
                      HexDigit(version[5]) >= 0 && HexDigit(version[7]) >= 0;
  if (shaped) {
    Fail(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  } else {
    Fail(400, "the HTTP version is malformed");
  }
  return false;
}

void HttpParser::OnStatusLine(std::string_view line) {
  if (line.size() < 12 || line[8] != ' ' || (line.size() > 12 && line[12] != ' ')) {
    return Fail(400, "the status line is malformed");
  }
  if (!OnVersion(line.substr(0, 8))) return;
  for (const char c : line.substr(9, 3)) {
    if (c < '0' || c > '9') return Fail(400, "the status line is malformed");
    status_ = status_ * 10 + (c - '0');
  }
  if (status_ < 100 || !AllOf(line.substr(12), kValue)) {
    return Fail(400, "the status line is malformed");
  }
  state_ = State::kHeaderLine;
}

bool HttpParser::CountHeaderLine(std::string_view line) {
  header_block_ += line.size() + 2;
  header_lines_ += 1;
  if (header_lines_ > limits_.header_count) {
    Fail(431, "there are more headers than the limit");
    return false;
  }
  if (header_block_ > limits_.header_block_bytes) {
    Fail(431, "the headers together are longer than the limit");
    return false;
  }
  return true;
}

void HttpParser::OnHeaderLine(std::string_view line) {
  if (!CountHeaderLine(line)) return;
  if (line[0] == ' ' || line[0] == '\t') return Fail(400, "a header is folded over two lines");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return Fail(400, "a header has no colon");
  const std::string_view raw_name = line.substr(0, colon);
  if (raw_name.empty() || !AllOf(raw_name, kToken)) {
    return Fail(400, "a header's name is malformed");
  }
  const std::string_view value = Trim(line.substr(colon + 1), kBlanks);
  if (!AllOf(value, kValue)) return Fail(400, "a header's value holds a control character");
  std::string name = ToLower(raw_name);
  if (!OnFramingHeader(name, value)) return;
  headers_.emplace_back(std::move(name), value);
}

// The headers that decide where this message ends. False when they fail.
bool HttpParser::OnFramingHeader(std::string_view name, std::string_view value) {
  if (name == "content-length") return OnContentLength(value);
  if (name == "transfer-encoding") {
    if (chunked_) {
      Fail(400, "there are two Transfer-Encoding headers");
    } else if (!EqualsIgnoreCase(value, "chunked")) {
      Fail(400, "the Transfer-Encoding is not chunked");
    } else if (minor_version_ == 0) {
      Fail(400, "HTTP/1.0 has no Transfer-Encoding");
    }
    chunked_ = true;
  } else if (name == "host" && kind_ == Kind::kRequest) {
    if (++hosts_ > 1) {
      Fail(400, "there are two Host headers");
    } else if (!AllOf(value, kHost)) {
      Fail(400, "the Host is malformed");
    }
  } else if (name == "connection") {
    OnConnection(value);
  } else if (name == "expect" && kind_ == Kind::kRequest) {
    if (!EqualsIgnoreCase(value, "100-continue")) {
      Fail(417, "the only expectation known here is 100-continue");
    }
    expects_continue_ = minor_version_ > 0;
  }
  return !failed();
}

bool HttpParser::OnContentLength(std::string_view value) {
  if (has_length_) {
    Fail(400, "there are two Content-Length headers");
    return false;
  }
  has_length_ = true;
  if (value.empty() || value.find_first_not_of("0123456789") != std::string_view::npos) {
    Fail(400, "the Content-Length is not a number");
    return false;
  }
  left_ = 0;
  for (const char c : value) {
    left_ = left_ * 10 + static_cast<uint64_t>(c - '0');
    if (left_ > limits_.body_bytes) {  // checked at each digit, so that nothing can overflow
      if (no_body_) return true;       // an answer to HEAD may speak of any length
      Fail(413, "the body is longer than the limit");
      return false;
    }
  }
  return true;
}

void HttpParser::OnConnection(std::string_view value) {
  while (!value.empty()) {
    const size_t comma = value.find(',');
    const std::string_view option = Trim(value.substr(0, comma), kBlanks);
    if (EqualsIgnoreCase(option, "close")) connection_close_ = true;
    if (EqualsIgnoreCase(option, "keep-alive")) connection_keep_alive_ = true;
    value.remove_prefix(comma == std::string_view::npos ? value.size() : comma + 1);
  }
}

void HttpParser::OnHeadersEnd() {
  if (has_length_ && chunked_) {
    return Fail(400, "there are both Content-Length and Transfer-Encoding");
  }
  // HTTP/1.0 knew no Host, and health checks of proxies still send none.
  if (kind_ == Kind::kRequest && minor_version_ == 1 && hosts_ == 0) {
    return Fail(400, "there is no Host header");
  }
  head_done_ = true;
  keep_alive_ = !connection_close_ && (minor_version_ == 1 || connection_keep_alive_);
  ChooseBody();
}

void HttpParser::ChooseBody() {
  const bool response = kind_ == Kind::kResponse;
  if (response && (no_body_ || status_ < 200 || status_ == 204 || status_ == 304)) {
    state_ = State::kDone;
  } else if (chunked_) {
    header_lines_ = header_block_ = 0;  // the trailers have the same limits again
    state_ = State::kChunkLine;
  } else if (response && !has_length_) {
    keep_alive_ = false;
    state_ = State::kBodyToEnd;
  } else {
    state_ = left_ > 0 ? State::kFixedBody : State::kDone;
  }
}

void HttpParser::OnChunkLine(std::string_view line) {
  uint64_t size = 0;
  size_t digits = 0;
  while (digits < line.size() && HexDigit(line[digits]) >= 0) {
    size = size * 16 + static_cast<uint64_t>(HexDigit(line[digits]));
    digits += 1;
    if (size > limits_.chunk_bytes) return Fail(400, "a chunk is longer than the limit");
  }
  if (digits == 0) return Fail(400, "a chunk's size is not a number");
  const std::string_view extension = line.substr(digits);
  if (!extension.empty() && (extension[0] != ';' || !AllOf(extension, kValue))) {
    return Fail(400, "a chunk's extension is malformed");
  }
  if (body_received_ + size > limits_.body_bytes) {
    return Fail(413, "the body is longer than the limit");
  }
  left_ = size;
  state_ = size == 0 ? State::kTrailerLine : State::kChunkData;
}

HttpRequest HttpParser::TakeRequest() {
  BT_CHECK(done() && kind_ == Kind::kRequest);
  HttpRequest request;
  request.method = std::move(method_);
  request.target = std::move(target_);
  request.path = std::move(path_);
  request.query = std::move(query_);
  request.headers = std::move(headers_);
  request.body = std::move(body_);
  return request;
}

}  // namespace baltoro
