#pragma once

// PTX text as tokens, which are views of it.

#include <string>
#include <string_view>
#include <vector>

namespace ptx {

struct Token {
  std::string_view text;
  bool is(const char* other) const { return text == other; }
};

[[noreturn]] void Fail(const std::string& what);

// With `whole_bodies` a function's body is one token: most kernels of a module are never run.
std::vector<Token> Tokens(std::string_view text, bool whole_bodies);

// Registers of 128 bits exist for one thing: a load or store of 16 bytes at once between `.reg
// .b128 packet;` and the end of its inline block. Here such an access is one of four words: a
// warp's instruction is never interrupted.
std::string WithoutPackets(std::string text);

}  // namespace ptx
