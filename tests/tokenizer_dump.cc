// Encodes texts for a comparison with another tokenizer (tests/tokenizer_vs_tiktoken.py).
//
//   tokenizer_dump MODEL_DIR [--specials] < texts > ids
//
// Both sides are records of a little-endian 32-bit count and that many elements: bytes of text in,
// 32-bit token ids out. Exit status 1 and a line on stderr if something is wrong.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "text/tokenizer.h"

int main(int argc, char** argv) {
  const bool specials = argc == 3 && std::strcmp(argv[2], "--specials") == 0;
  if (argc != 2 && !specials) {
    std::fprintf(stderr, "usage: %s MODEL_DIR [--specials] < texts > ids\n", argv[0]);
    return 1;
  }
  const auto tokenizer = baltoro::Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 1;
  }
  uint32_t count = 0;
  std::string text;
  while (std::fread(&count, sizeof(count), 1, stdin) == 1) {
    text.resize(count);
    if (std::fread(text.data(), 1, count, stdin) != count) {
      std::fprintf(stderr, "the input ends inside a text\n");
      return 1;
    }
    const auto ids =
        specials ? tokenizer.value()->EncodeWithSpecials(text) : tokenizer.value()->Encode(text);
    const auto ids_count = static_cast<uint32_t>(ids.size());
    if (std::fwrite(&ids_count, sizeof(ids_count), 1, stdout) != 1 ||
        std::fwrite(ids.data(), sizeof(ids[0]), ids.size(), stdout) != ids.size()) {
      std::fprintf(stderr, "cannot write\n");
      return 1;
    }
  }
  return 0;
}
