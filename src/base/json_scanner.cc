#include "base/json_scanner.h"

#include <charconv>

#include "base/utf8.h"

namespace baltoro {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsHighSurrogate(uint32_t unit) {
  return unit >= 0xD800 && unit < 0xDC00;
}
bool IsLowSurrogate(uint32_t unit) {
  return unit >= 0xDC00 && unit < 0xE000;
}

}  // namespace

JsonScanner::JsonScanner(std::string_view text) : text_(text) {
  // A byte order mark is let pass, as ParseJson does.
  if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
}

Status JsonScanner::status() const {
  if (ok()) return {};
  return InvalidArgument(std::string(error_) + " at byte " + std::to_string(at_));
}

bool JsonScanner::Fail(const char* error) {
  if (error_ == nullptr) error_ = error;
  return false;
}

void JsonScanner::SkipSpace() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

char JsonScanner::Peek() {
  SkipSpace();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool JsonScanner::Open(char bracket) {
  if (!ok() || Peek() != bracket) return FailHere();
  if (depth_ == kDepthMax) return Fail("JSON nested too deeply");
  ++at_;
  const uint64_t bit = uint64_t{1} << depth_++;
  objects_ = bracket == '{' ? objects_ | bit : objects_ & ~bit;
  first_ = true;
  return true;
}

bool JsonScanner::NextMember(char close) {
  if (!ok() || depth_ == 0) return FailHere();
  const char next = Peek();
  if (next == close) {
    ++at_;
    --depth_;
    first_ = false;
    return false;
  }
  if (!first_) {
    if (next != ',') return FailHere();
    ++at_;
  }
  first_ = false;
  return true;
}

bool JsonScanner::NextKey(std::string& key) {
  if (!NextMember('}') || !String(key)) return false;
  if (Peek() != ':') return FailHere();
  ++at_;
  return true;
}

bool JsonScanner::NextElement() {
  return NextMember(']');
}

bool JsonScanner::String(std::string& out) {
  if (!ok() || Peek() != '"') return FailHere();
  out.clear();
  ++at_;
  size_t plain = at_;  // start of the run that is taken as it is
  while (at_ < text_.size()) {
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte == '"') {
      out.append(text_, plain, at_ - plain);
      ++at_;
      return true;
    }
    if (byte < 0x20) return FailHere();
    if (byte == '\\') {
      out.append(text_, plain, at_ - plain);
      if (!Escape(out)) return FailHere();
      plain = at_;
    } else if (byte < 0x80) {
      ++at_;
    } else {
      const size_t length = Utf8ValidLength(text_.substr(at_, 4));
      if (length == 0) return FailHere();
      at_ += length;
    }
  }
  return FailHere();
}

bool JsonScanner::HexUnit(uint32_t& unit) {
  if (text_.size() - at_ < 4) return false;
  const char* begin = text_.data() + at_;
  const auto read = std::from_chars(begin, begin + 4, unit, 16);
  if (read.ec != std::errc() || read.ptr != begin + 4) return false;
  at_ += 4;
  return true;
}

bool JsonScanner::Escape(std::string& out) {
  if (text_.size() - at_ < 2) return false;
  const char kind = text_[at_ + 1];
  at_ += 2;
  switch (kind) {
    case '"':
    case '\\':
    case '/':
      out.push_back(kind);
      return true;
    case 'b':
      out.push_back('\b');
      return true;
    case 'f':
      out.push_back('\f');
      return true;
    case 'n':
      out.push_back('\n');
      return true;
    case 'r':
      out.push_back('\r');
      return true;
    case 't':
      out.push_back('\t');
      return true;
    case 'u':
      break;
    default:
      return false;
  }
  uint32_t code = 0;
  if (!HexUnit(code) || IsLowSurrogate(code)) return false;
  if (IsHighSurrogate(code)) {
    uint32_t low = 0;
    if (!text_.substr(at_).starts_with("\\u")) return false;
    at_ += 2;
    if (!HexUnit(low) || !IsLowSurrogate(low)) return false;
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  Utf8Append(out, code);
  return true;
}

bool JsonScanner::Natural(int64_t& out) {
  if (!ok() || !IsDigit(Peek())) return false;
  const char* begin = text_.data() + at_;
  const char* end = text_.data() + text_.size();
  const auto read = std::from_chars(begin, end, out);
  if (read.ec != std::errc()) return false;
  if (*begin == '0' && read.ptr != begin + 1) return false;
  if (read.ptr != end && (*read.ptr == '.' || *read.ptr == 'e' || *read.ptr == 'E')) return false;
  at_ = static_cast<size_t>(read.ptr - text_.data());
  return true;
}

bool JsonScanner::Literal(std::string_view word) {
  if (!text_.substr(at_).starts_with(word)) return FailHere();
  at_ += word.size();
  return true;
}

bool JsonScanner::SkipNumber() {
  const auto here = [&] { return at_ < text_.size() ? text_[at_] : '\0'; };
  const auto digits = [&] {
    if (!IsDigit(here())) return false;
    while (IsDigit(here())) ++at_;
    return true;
  };
  if (here() == '-') ++at_;
  if (here() == '0') {
    ++at_;
  } else if (!digits()) {
    return FailHere();
  }
  if (here() == '.') {
    ++at_;
    if (!digits()) return FailHere();
  }
  if (here() == 'e' || here() == 'E') {
    ++at_;
    if (here() == '+' || here() == '-') ++at_;
    if (!digits()) return FailHere();
  }
  return true;
}

bool JsonScanner::Skip() {
  const int outside = depth_;
  do {
    // Between two members of what is skipped, or before the value itself.
    if (depth_ > outside) {
      const bool more = InObject() ? NextKey(skipped_) : NextElement();
      if (!ok()) return false;
      if (!more) continue;
    }
    switch (Peek()) {
      case '{':
      case '[':
        if (!Open(text_[at_])) return false;
        break;
      case '"':
        if (!String(skipped_)) return false;
        break;
      case 't':
        if (!Literal("true")) return false;
        break;
      case 'f':
        if (!Literal("false")) return false;
        break;
      case 'n':
        if (!Literal("null")) return false;
        break;
      default:
        if (!SkipNumber()) return false;
    }
  } while (depth_ > outside);
  return ok();
}

bool JsonScanner::End() {
  if (!ok()) return false;
  Peek();
  return at_ == text_.size() || FailHere();
}

}  // namespace baltoro
