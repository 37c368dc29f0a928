#include <fmt/format.h>

#include "counted/work_case.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace baltoro::work {
namespace {

constexpr char kText[] = "The quick brown fox doesn't jump over 12345 lazy dogs.\n  And so on... ";
constexpr char kCjk[] = "敏捷的棕色狐狸跳过了懒狗。日本語の文章、한국어 ";

// The text is `piece` again and again.
WorkCase EncodeCase(std::string name, size_t size, std::string piece) {
  return {std::move(name), size, [piece](size_t n) {
            return [text = Times(n, piece)] { BT_CHECK(!Words().Encode(text).empty()); };
          }};
}

// A prompt whose names of added tokens become these.
WorkCase SpecialsCase(std::string name, size_t size, std::string piece) {
  return {std::move(name), size, [piece](size_t n) {
            return
                [text = Times(n, piece)] { BT_CHECK(!Words().EncodeWithSpecials(text).empty()); };
          }};
}

Work EncodeSegments(size_t size) {
  std::vector<TextSegment> segments;
  for (size_t i = 0; i < size; ++i) segments.push_back({"some <|im_end|> words", i % 2 == 0});
  return [segments] { BT_CHECK(!Words().EncodeSegments(segments).empty()); };
}

// Token by token, and all at once.
Work Decode(std::vector<TokenId> ids) {
  return [ids = std::move(ids)] {
    StreamDetokenizer stream(Words(), /*skip_special=*/true);
    std::string text;
    for (const TokenId id : ids) text += stream.Push(id);
    text += stream.Finish();
    BT_CHECK(text == Words().Decode(ids, /*skip_special=*/true));
  };
}

std::vector<TokenId> BytesAsTokens(size_t count, std::string_view bytes) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < count; ++i) {
    const std::vector<TokenId> one = Words().Encode(bytes.substr(i % bytes.size(), 1));
    ids.insert(ids.end(), one.begin(), one.end());
  }
  return ids;
}

// One byte at a time, each of which could still begin the stop string.
Work MatchStops(size_t size) {
  return [size] {
    StopMatcher stops({Times(64, "a") + "b", "stop"}, /*include=*/false);
    std::string shown;
    for (size_t i = 0; i < size; ++i) stops.Push("a", shown);
    stops.Flush(shown);
    BT_CHECK(shown.size() == size);
  };
}

}  // namespace

std::vector<WorkCase> TokenizerCases() {
  return {
      EncodeCase("tokenizer_text", 100, kText),
      EncodeCase("tokenizer_cjk", 100, kCjk),
      EncodeCase("tokenizer_letters", 10'000, "a"),
      EncodeCase("tokenizer_mixed_letters", 1000, "abcdefghij"),
      EncodeCase("tokenizer_capitals", 10'000, "A"),
      EncodeCase("tokenizer_han", 2000, "中"),
      EncodeCase("tokenizer_blanks", 10'000, " "),
      EncodeCase("tokenizer_lines", 5000, "\n"),
      EncodeCase("tokenizer_blank_lines", 2000, "   \n"),
      EncodeCase("tokenizer_signs", 10'000, "="),
      EncodeCase("tokenizer_digits", 10'000, "7"),
      EncodeCase("tokenizer_marks", 2000, "e\u0301"),
      EncodeCase("tokenizer_apostrophes", 2000, "a's"),
      EncodeCase("tokenizer_not_utf8", 10'000, "\xE4\xB8"),
      SpecialsCase("tokenizer_names", 500, "<|im_end|>"),
      SpecialsCase("tokenizer_near_names", 500, "<|im_en"),
      SpecialsCase("tokenizer_angles", 5000, "<"),
      {"tokenizer_segments", 200, EncodeSegments},
      {"detokenizer_text", 50, [](size_t n) { return Decode(Words().Encode(Times(n, kText))); }},
      {"detokenizer_cjk", 2000, [](size_t n) { return Decode(BytesAsTokens(n, kCjk)); }},
      {"detokenizer_half_characters", 2000,
       [](size_t n) { return Decode(BytesAsTokens(n, "\xE4\xB8\xF0\x9F\x98\xFF")); }},
      {"detokenizer_no_beginning", 2000, [](size_t n) { return Decode(BytesAsTokens(n, "\x80")); }},
      {"stop_strings", 2000, MatchStops},
  };
}

}  // namespace baltoro::work
