#pragma once

// The prompts of a benchmark, ready to be sent.

#include <string>
#include <vector>

#include "flags/serve_bench_options.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace baltoro {

// One request of a session.
struct BenchTurn {
  size_t text_bytes = 0;      // of the session's text: its prompt
  int64_t prompt_tokens = 0;  // 0: not counted here
  int64_t output_tokens = 0;  // asked for at most
  double think = 0;           // seconds from the answer before to this request
};

// Requests of which each is sent when the one before has its answer; nearly always one.
struct BenchSession {
  std::string text;  // JSON: of completions a string, of chat messages without their brackets
  std::vector<BenchTurn> turns;
};

struct Dataset {
  std::vector<BenchSession> sessions;
  std::string tools;  // JSON of the field in every request; empty: none
  std::vector<std::string> notices;
};

// What prompts are made with; null where there is none.
struct BenchText {
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;
};

// Errors name the flag, or the file and its line.
Result<Dataset> BuildDataset(const DatasetOptions& options, bool chat, const BenchText& text);

}  // namespace baltoro
