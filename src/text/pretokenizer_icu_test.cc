// The tables and the scanner against ICU, which has its own tables and runs the pattern itself.

#include <gtest/gtest.h>
#include <unicode/uchar.h>
#include <unicode/uregex.h>
#include <unicode/uscript.h>
#include <unicode/ustring.h>
#include <unicode/uversion.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/pretokenizer.h"
#include "text/unicode_tables.h"

namespace baltoro {
namespace {

bool IcuHasUnicode15() {
  UVersionInfo version;
  u_getUnicodeVersion(version);
  return version[0] == 15 && version[1] == 0;
}

#define SKIP_UNLESS_UNICODE_15() \
  if (!IcuHasUnicode15()) GTEST_SKIP() << "this ICU is not of Unicode 15.0, as the tables are"

std::u16string Utf16(std::u32string_view text) {
  std::u16string out;
  for (const char32_t code : text) {
    if (code >= 0x10000) {
      out += static_cast<char16_t>(0xD7C0 + (code >> 10));
      out += static_cast<char16_t>(0xDC00 + (code & 0x3FF));
    } else {
      out += static_cast<char16_t>(code);
    }
  }
  return out;
}

class IcuSplitter {
 public:
  IcuSplitter() {
    const std::u16string upper = u"[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]";
    const std::u16string lower = u"[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]";
    const std::u16string after = u"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|";
    const std::u16string pattern =
        u"[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" + upper + u"*" + lower + u"+" + after +
        u"[^\\r\\n\\p{L}\\p{N}]?" + upper + u"+" + lower + u"*" + after +
        u"\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    UErrorCode error = U_ZERO_ERROR;
    regex_.reset(
        uregex_open(pattern.data(), static_cast<int32_t>(pattern.size()), 0, nullptr, &error));
    EXPECT_TRUE(U_SUCCESS(error)) << u_errorName(error);
  }

  // The length of each piece, in UTF-16 units.
  std::vector<int32_t> Split(const std::u16string& text) {
    UErrorCode error = U_ZERO_ERROR;
    std::vector<int32_t> lengths;
    uregex_setText(regex_.get(), text.data(), static_cast<int32_t>(text.size()), &error);
    int32_t at = 0;
    while (uregex_findNext(regex_.get(), &error)) {
      EXPECT_EQ(uregex_start(regex_.get(), 0, &error), at);
      const int32_t end = uregex_end(regex_.get(), 0, &error);
      lengths.push_back(end - at);
      at = end;
    }
    EXPECT_TRUE(U_SUCCESS(error)) << u_errorName(error);
    EXPECT_EQ(at, static_cast<int32_t>(text.size()));
    return lengths;
  }

 private:
  struct Close {
    void operator()(URegularExpression* regex) const { uregex_close(regex); }
  };
  std::unique_ptr<URegularExpression, Close> regex_;
};

std::vector<int32_t> OurSplit(std::string_view text) {
  std::vector<int32_t> lengths;
  while (!text.empty()) {
    const size_t length = FirstPieceLength(text);
    int32_t units = 0;
    for (size_t i = 0; i < length; ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      if ((byte & 0xC0) != 0x80) units += byte >= 0xF0 ? 2 : 1;
    }
    lengths.push_back(units);
    text.remove_prefix(length);
  }
  return lengths;
}

TEST(UnicodeTablesTest, AgreeWithIcuOnEveryCharacter) {
  SKIP_UNLESS_UNICODE_15();
  for (UChar32 code = 0; code < 0x110000; ++code) {
    UErrorCode error = U_ZERO_ERROR;
    const bool han = uscript_getScript(code, &error) == USCRIPT_HAN;
    const int8_t category = u_charType(code);
    const bool upper = category == U_UPPERCASE_LETTER || category == U_TITLECASE_LETTER;
    const bool lower = category == U_LOWERCASE_LETTER;
    const bool caseless = category == U_MODIFIER_LETTER || category == U_OTHER_LETTER ||
                          category == U_NON_SPACING_MARK || category == U_ENCLOSING_MARK ||
                          category == U_COMBINING_SPACING_MARK;
    const bool number = category == U_DECIMAL_DIGIT_NUMBER || category == U_LETTER_NUMBER ||
                        category == U_OTHER_NUMBER;
    const bool newline = code == '\r' || code == '\n';
    const int want = (han ? kCharHan : 0) | (upper && !han ? kCharUpper : 0) |
                     (lower && !han ? kCharLower : 0) | (caseless && !han ? kCharCaseless : 0) |
                     (number ? kCharNumber : 0) | (u_isUWhiteSpace(code) ? kCharSpace : 0) |
                     (newline ? kCharNewline : 0) |
                     (!newline && !u_isalpha(code) && !number ? kCharPrefix : 0);
    ASSERT_EQ(int{CharClass(static_cast<char32_t>(code))}, want) << std::hex << code;
  }
}

TEST(PretokenizerIcuTest, EqualsThePatternOnRandomStrings) {
  SKIP_UNLESS_UNICODE_15();
  // Characters of every class, of both kinds where classes overlap, and of all lengths in UTF-8.
  const std::u32string pool =
      U"aZ sStTlLdDrReEvVmM'''   \t\n\n\r0123-_./!<|>\u0301\u0345\u01c5\u02b0\u00aa\u017f\u212a"
      U"\u3005\u3007\u3021\u2e80\u4e00\u9fa5\u30a2\u3042\u30fc\uac00\u0085\v\f\u00a0\u2003\u2028"
      U"\u3000\u200b\u200d\ufe0f\u2160\u00bd\u0660\u0e01\u0e31\u093f\u0915\u05d0\u0627\u0416\u0436"
      U"\u00df\u1e9e\u0130\u0131\ufffd\ue000\u0378\u16ee\u180e\U0001f600\U0001f468\U0001f3fd"
      U"\U00020000\U0001d400\U0001d7ce\U000e0100\U00016ff0\U00016fe3\U0010ffff";
  IcuSplitter icu;
  std::mt19937 random(20261121);

  for (int round = 0; round < 100'000; ++round) {
    const size_t length = 1 + random() % (round % 10 == 0 ? 100 : 12);
    // A part of the pool at a time, so that classes meet more often than chance has it.
    const size_t some = 2 + random() % (pool.size() - 2);
    const size_t from = random() % pool.size();
    std::u32string text;
    std::string bytes;
    for (size_t i = 0; i < length; ++i) {
      char32_t code = pool[(from + random() % some) % pool.size()];
      if (random() % 16 == 0) code = static_cast<char32_t>(random() % 0x110000);
      if (code >= 0xD800 && code < 0xE000) code = 'x';
      text += code;
      Utf8Append(bytes, code);
    }

    ASSERT_EQ(OurSplit(bytes), icu.Split(Utf16(text))) << "round " << round << ": " << bytes;
  }
}

}  // namespace
}  // namespace baltoro
