// Fuzzes the reader of what a model writes, over a small vocabulary made here.
//
// For any tokens: events in any pieces join to the events of the whole, every text is valid UTF-8
// and no longer than what was written, and calls begin, go on and end in order. The first byte
// chooses the options, the second how many tokens come at once; each later byte is a token.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/event_parser.h"

namespace {

using baltoro::EventParser;
using baltoro::EventParserOptions;
using baltoro::OutputEvent;
using baltoro::OutputEventKind;
using baltoro::TokenId;

std::string Base64(const std::string& bytes) {
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

// Every byte, so that the vocabulary is complete.
std::unique_ptr<baltoro::Tokenizer> MakeTokenizer() {
  std::string folder = (std::filesystem::temp_directory_path() / "event_parser_XXXXXX").string();
  BT_CHECK(mkdtemp(folder.data()) != nullptr);
  {
    std::ofstream file(folder + "/tiktoken.model");
    for (int byte = 0; byte < 256; ++byte) {
      file << Base64(std::string(1, static_cast<char>(byte))) << ' ' << byte << '\n';
    }
  }
  auto loaded = baltoro::Tokenizer::Load(folder);
  std::filesystem::remove_all(folder);
  BT_CHECK(loaded.ok());
  return std::move(loaded).value();
}

// What one byte of the input stands for: marks, whole words, or a byte.
std::vector<TokenId> Meaning(const baltoro::Tokenizer& tokenizer, uint8_t byte) {
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
  constexpr size_t kWordCount = std::size(kWords);
  if (byte < kWordCount) return {tokenizer.SpecialId(kWords[byte]).value_or(-1)};
  if (byte >= 0x80 && byte < 0x80 + std::size(kTexts)) {
    return tokenizer.Encode(kTexts[byte - 0x80]);
  }
  if (byte == 0xFF) return {-1};
  return {byte};
}

void CheckOrder(const std::vector<OutputEvent>& events) {
  int open = -1, calls = 0;
  for (const OutputEvent& event : events) {
    BT_CHECK(baltoro::IsValidUtf8(event.text));
    switch (event.kind) {
      case OutputEventKind::kToolCallBegin:
        BT_CHECK(open == -1 && event.call_index == calls && !event.name.empty());
        open = calls++;
        break;
      case OutputEventKind::kToolCallArguments:
        BT_CHECK(open == event.call_index && !event.text.empty());
        break;
      case OutputEventKind::kToolCallEnd:
        BT_CHECK(open == event.call_index);
        open = -1;
        break;
      case OutputEventKind::kReasoning:
      case OutputEventKind::kContent:
        BT_CHECK(open == -1 && !event.text.empty());
        break;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<baltoro::Tokenizer> kTokenizer = MakeTokenizer();
  if (size < 2) return 0;
  EventParserOptions options;
  options.reasoning = (data[0] & 1) == 0;
  options.tools = (data[0] & 2) == 0;
  options.starts_in_reasoning = (data[0] & 4) != 0;
  options.skip_special_tokens = (data[0] & 8) == 0;
  if ((data[0] & 16) != 0) options.first_call_index = 3;
  const size_t at_once = 1 + data[1] % 8;

  std::vector<TokenId> ids;
  size_t bytes = 0;
  for (size_t i = 2; i < size; ++i) {
    for (const TokenId id : Meaning(*kTokenizer, data[i])) {
      ids.push_back(id);
      bytes += kTokenizer->TokenBytes(id).size();
    }
  }

  EventParser whole_parser(*kTokenizer, options);
  std::vector<OutputEvent> whole;
  for (const TokenId id : ids) whole_parser.Push(id, whole);
  whole_parser.Finish(whole);
  CheckOrder(whole);

  EventParser parser(*kTokenizer, options);
  std::vector<OutputEvent> joined;
  size_t shown = 0;
  for (size_t at = 0; at <= ids.size();) {
    std::vector<OutputEvent> some;
    for (size_t n = 0; n < at_once && at < ids.size(); ++n) parser.Push(ids[at++], some);
    if (at == ids.size()) {
      parser.Finish(some);
      ++at;
    }
    for (OutputEvent& event : some) {
      if (event.kind != OutputEventKind::kToolCallBegin) shown += event.text.size();
      const bool more = !joined.empty() && joined.back().kind == event.kind &&
                        joined.back().call_index == event.call_index &&
                        event.kind != OutputEventKind::kToolCallBegin &&
                        event.kind != OutputEventKind::kToolCallEnd;
      if (more) {
        joined.back().text += event.text;
      } else {
        joined.push_back(std::move(event));
      }
    }
  }
  BT_CHECK(joined == whole);
  BT_CHECK(shown <= 3 * bytes);  // a byte that is no character becomes three
  return 0;
}
