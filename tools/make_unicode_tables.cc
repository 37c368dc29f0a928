// Prints src/text/unicode_tables.inc. Needs ICU 72 (Unicode 15.0), so that the table does not
// change with the machine:
//   g++ -std=c++20 -Isrc tools/make_unicode_tables.cc -licuuc -o /tmp/make_unicode_tables
//   /tmp/make_unicode_tables > src/text/unicode_tables.inc

#include <unicode/uchar.h>
#include <unicode/uscript.h>
#include <unicode/uversion.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "text/unicode_tables.h"

namespace {

constexpr int kBlock = 1 << baltoro::kCharBlockBits;

uint8_t ClassOf(UChar32 code) {
  UErrorCode error = U_ZERO_ERROR;
  const bool han = uscript_getScript(code, &error) == USCRIPT_HAN;
  const uint32_t category = U_GET_GC_MASK(code);
  const bool newline = code == '\r' || code == '\n';
  uint8_t bits = 0;
  if (han) bits |= baltoro::kCharHan;
  if (!han && (category & (U_GC_LU_MASK | U_GC_LT_MASK))) bits |= baltoro::kCharUpper;
  if (!han && (category & U_GC_LL_MASK)) bits |= baltoro::kCharLower;
  if (!han && (category & (U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK))) {
    bits |= baltoro::kCharCaseless;
  }
  if (category & U_GC_N_MASK) bits |= baltoro::kCharNumber;
  if (u_hasBinaryProperty(code, UCHAR_WHITE_SPACE)) bits |= baltoro::kCharSpace;
  if (newline) bits |= baltoro::kCharNewline;
  if (!newline && !(category & (U_GC_L_MASK | U_GC_N_MASK))) bits |= baltoro::kCharPrefix;
  return bits;
}

void Print(const char* name, const std::vector<uint8_t>& values) {
  std::printf("const uint8_t %s[] = {\n", name);
  std::string line;
  for (const uint8_t value : values) {
    const std::string word = std::to_string(value) + ",";
    if (line.size() + word.size() > 100) {
      std::printf("%s\n", line.c_str());
      line.clear();
    }
    line += word;
  }
  std::printf("%s\n};\n", line.c_str());
}

}  // namespace

int main() {
  UVersionInfo version;
  u_getUnicodeVersion(version);
  if (version[0] != 15 || version[1] != 0) {
    std::fprintf(stderr, "this ICU has Unicode %d.%d, the table is of 15.0\n", version[0],
                 version[1]);
    return 1;
  }
  std::map<std::vector<uint8_t>, uint8_t> known;
  std::vector<uint8_t> index;
  std::vector<uint8_t> blocks;
  for (UChar32 start = 0; start < 0x110000; start += kBlock) {
    std::vector<uint8_t> block(kBlock);
    for (int i = 0; i < kBlock; ++i) block[i] = ClassOf(start + i);
    const auto [at, fresh] = known.try_emplace(block, static_cast<uint8_t>(known.size()));
    if (fresh) blocks.insert(blocks.end(), block.begin(), block.end());
    index.push_back(at->second);
  }
  if (known.size() > 256) {
    std::fprintf(stderr, "%zu blocks do not fit one byte\n", known.size());
    return 1;
  }
  std::printf(
      "// Unicode 15.0, made by tools/make_unicode_tables.cc; not for editing.\n"
      "// clang-format off\n");
  Print("kCharBlockIndex", index);
  Print("kCharBlocks", blocks);
  std::printf("// clang-format on\n");
  return 0;
}
