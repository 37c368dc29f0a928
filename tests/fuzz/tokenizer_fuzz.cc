// Fuzzes the tokenizer with a vocabulary made here (libFuzzer):
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Isrc -Itests
//     tests/fuzz/tokenizer_fuzz.cc src/text/{bpe,pretokenizer,unicode_tables}.cc src/base/check.cc
//
// For any bytes: pieces join to the text, the tokens of each are those of the naive algorithm, and
// their bytes join to the text. The first byte chooses one of the vocabularies
// and how long pieces are cut into windows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "support/vocabulary.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"

namespace {

constexpr size_t kTextBytesMax = 2048;

struct Subject {
  explicit Subject(const std::vector<std::string>& tokens)
      : vocabulary(baltoro::BpeVocabulary::Build(tokens).value()), naive(tokens) {}
  baltoro::BpeVocabulary vocabulary;
  baltoro::test::NaiveBpe naive;
};

std::vector<std::string> CutVocabulary() {
  auto tokens = baltoro::test::RandomVocabulary(0, 1);
  std::set<std::string> known(tokens.begin(), tokens.end());
  const std::string text = "aa bb  中丰串乐中中 é😀\u0301中's\n\n\n中乐乐a中 丰1中aaaa乐乐乐";
  for (size_t from = 0; from < text.size(); ++from) {
    for (const size_t length : {2, 3, 4, 6, 7}) {
      const std::string token = text.substr(from * 7 % text.size(), length);
      if (token.size() > 1 && known.insert(token).second) tokens.push_back(token);
    }
  }
  return tokens;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Subject kSubjects[] = {Subject(CutVocabulary()),
                                      Subject(baltoro::test::RandomVocabulary(400, 1, 16)),
                                      Subject(baltoro::test::RandomVocabulary(2000, 2))};
  if (size < 1) return 0;
  const Subject& subject = kSubjects[data[0] % 3];
  std::string_view text(reinterpret_cast<const char*>(data) + 1, std::min(size - 1, kTextBytesMax));
  baltoro::BpeVocabulary::Scratch scratch;
  scratch.window_bytes = 40 + data[0];
  while (!text.empty()) {
    const size_t length = baltoro::FirstPieceLength(text);
    BT_CHECK(length > 0 && length <= text.size());
    const std::string_view piece = text.substr(0, length);
    std::vector<baltoro::TokenId> ids;
    subject.vocabulary.EncodePiece(piece, scratch, ids);
    BT_CHECK(ids == subject.naive.Encode(piece));
    std::string joined;
    for (const baltoro::TokenId id : ids) joined += subject.vocabulary.Bytes(id);
    BT_CHECK(joined == piece);
    text.remove_prefix(length);
  }
  return 0;
}
