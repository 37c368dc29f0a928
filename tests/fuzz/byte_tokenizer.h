#pragma once

// What a model may write, out of a fuzzer's bytes: a vocabulary in which each byte is a token
// beside the marks of the format, and what one byte of an input stands for.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"

namespace baltoro::test {

inline std::string Base64(const std::string& bytes) {
  static const char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += i + j > bytes.size() ? '=' : kDigits[group >> (18 - 6 * j) & 63];
    }
  }
  return out;
}

inline const Tokenizer& ByteTokenizer() {
  static const std::unique_ptr<Tokenizer> kTokenizer = [] {
    std::string folder = (std::filesystem::temp_directory_path() / "bytes_XXXXXX").string();
    BT_CHECK(mkdtemp(folder.data()) != nullptr);
    {
      std::ofstream file(folder + "/tiktoken.model");
      for (int byte = 0; byte < 256; ++byte) {
        file << Base64(std::string(1, static_cast<char>(byte))) << ' ' << byte << '\n';
      }
    }
    auto loaded = Tokenizer::Load(folder);
    std::filesystem::remove_all(folder);
    BT_CHECK(loaded.ok());
    return std::move(loaded).value();
  }();
  return *kTokenizer;
}

// Marks, whole words, or a byte.
inline std::vector<TokenId> MeaningOf(uint8_t byte) {
  static const char* const kWords[] = {"<think>",
                                       "</think>",
                                       "<|tool_calls_section_begin|>",
                                       "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>",
                                       "<|tool_call_argument_begin|>",
                                       "<|tool_call_end|>",
                                       "<|im_end|>",
                                       "[EOS]"};
  static const char* const kTexts[] = {"<|tool_call_section_begin|>",
                                       "<|tool_call_section_end|>",
                                       "functions.f:0",
                                       "g.h-i:12",
                                       "{\"a\": 1}",
                                       "<|tool_call_"};
  if (byte < std::size(kWords)) return {ByteTokenizer().SpecialId(kWords[byte]).value_or(-1)};
  if (byte >= 0x80 && byte < 0x80 + std::size(kTexts)) {
    return ByteTokenizer().Encode(kTexts[byte - 0x80]);
  }
  if (byte == 0xFF) return {-1};
  return {byte};
}

}  // namespace baltoro::test
