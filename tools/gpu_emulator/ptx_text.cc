#include "ptx_text.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ptx {

void Fail(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "EMULATOR: PTX: %s\n", what.c_str());
  std::_Exit(3);
}

namespace {

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%' || c == '.' || c == ':';
}

// Behind the brace that closes the one at `i`.
size_t EndOfBraces(std::string_view text, size_t i) {
  int depth = 0;
  do {
    i = text.find_first_of("{}/\"", i);
    if (i == std::string_view::npos) Fail("a brace that is not closed");
    const char c = text[i];
    if (c == '/' && text[i + 1] == '/') {
      i = text.find('\n', i);
    } else if (c == '"') {
      i = text.find('"', i + 1);
    } else {
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    }
    ++i;
  } while (depth != 0);
  return i;
}

}  // namespace

std::vector<Token> Tokens(std::string_view text, bool whole_bodies) {
  std::vector<Token> tokens;
  size_t i = 0;
  bool in_head = false;
  while (i < text.size()) {
    const char c = text[i];
    if (whole_bodies && c == '{' && in_head) {
      const size_t end = EndOfBraces(text, i);
      tokens.push_back({text.substr(i, end - i)});
      in_head = false;
      i = end;
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      ++i;
    } else if (c == '/' && text[i + 1] == '/') {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (c == '/' && text[i + 1] == '*') {
      i = text.find("*/", i) + 2;
    } else if (c == '"') {
      const size_t end = text.find('"', i + 1);
      tokens.push_back({text.substr(i, end + 1 - i)});
      i = end + 1;
    } else if (IsNameCharacter(c)) {
      size_t end = i;
      // "::" belongs to opcodes (shared::cta); a single ':' ends a label.
      while (end < text.size() && IsNameCharacter(text[end])) {
        if (text[end] == ':') {
          if (end + 1 < text.size() && text[end + 1] == ':') {
            end += 2;
            continue;
          }
          break;
        }
        ++end;
      }
      if (end == i) end = i + 1;  // a ':' alone
      tokens.push_back({text.substr(i, end - i)});
      in_head |= tokens.back().is(".entry") || tokens.back().is(".func");
      i = end;
    } else {
      tokens.push_back({text.substr(i, 1)});
      in_head &= c != ';';
      ++i;
    }
  }
  return tokens;
}

std::string WithoutPackets(std::string text) {
  const std::string mark = ".reg .b128 ";
  for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos;) {
    const size_t end = text.find("\n}", at);
    const std::string block = text.substr(at, end - at);
    const auto between = [&block](const char* open, char close) {
      size_t from = block.find(open);
      if (from == std::string::npos)
        Fail("a block of 128-bit registers that is not a plain access: " + block);
      from += std::strlen(open);
      return block.substr(from, block.find(close, from) - from);
    };
    const std::string address = " [" + between("[", ']') + "]";
    const size_t store = block.find("st."), load = block.find("ld.");
    const bool is_store = store != std::string::npos;
    std::string opcode =
        block.substr(is_store ? store : load,
                     block.find(".b128", is_store ? store : load) - (is_store ? store : load)) +
        ".v4.b32";
    std::string plain;
    if (is_store) {
      plain = opcode + address + ", {" + between("mov.b64 low, {", '}') + ", " +
              between("mov.b64 high, {", '}') + "};";
    } else {
      const size_t first = block.find("mov.b64 {") + 9, second = block.find("mov.b64 {", first) + 9;
      plain = opcode + " {" + block.substr(first, block.find('}', first) - first) + ", " +
              block.substr(second, block.find('}', second) - second) + "}," + address + ";";
    }
    text.replace(at, end - at, plain);
  }
  return text;
}

}  // namespace ptx
