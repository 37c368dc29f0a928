#include "base/utf8.h"

namespace baltoro {
namespace {

// The lead byte fixes the length and the allowed range of the second byte (Unicode table 3-7).
struct Lead {
  size_t length;
  unsigned char second_min, second_max;
};

Lead LeadOf(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes at the start of `text` that belong to a character begun properly: all of it, or the part
// present before the first wrong byte. `complete` tells which.
size_t ProperPrefix(std::string_view text, bool& complete) {
  complete = false;
  if (text.empty()) return 0;
  const Lead lead = LeadOf(static_cast<unsigned char>(text[0]));
  if (lead.length == 0) return 0;
  size_t i = 1;
  for (; i < lead.length && i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return i;
  }
  complete = i == lead.length;
  return i;
}

}  // namespace

size_t Utf8ValidLength(std::string_view text) {
  bool complete = false;
  const size_t length = ProperPrefix(text, complete);
  return complete ? length : 0;
}

size_t Utf8Decode(std::string_view text, char32_t& code) {
  const size_t length = Utf8ValidLength(text);
  const auto at = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  switch (length) {
    case 1:
      code = at(0);
      break;
    case 2:
      code = (at(0) & 0x1F) << 6 | (at(1) & 0x3F);
      break;
    case 3:
      code = (at(0) & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
      break;
    case 4:
      code = (at(0) & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
      break;
    default:
      break;
  }
  return length;
}

void Utf8Append(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool Utf8IncompleteTail(std::string_view text, size_t& length) {
  for (length = 1; length <= 3 && length <= text.size(); ++length) {
    const std::string_view tail = text.substr(text.size() - length);
    const auto first = static_cast<unsigned char>(tail[0]);
    if ((first & 0xC0) == 0x80) continue;  // a continuation byte: look further back
    bool complete = false;
    return ProperPrefix(tail, complete) == length && !complete;
  }
  length = 0;
  return false;
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8ValidLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string Utf8Sanitize(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    bool complete = false;
    size_t length = ProperPrefix(text, complete);
    if (complete) {
      out.append(text.substr(0, length));
    } else {
      out.append("\xEF\xBF\xBD");
      if (length == 0) length = 1;
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace baltoro
