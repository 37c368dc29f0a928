#pragma once

// What the builders of data sets share. Private to dataset.cc and the files beside it.

#include <random>
#include <string>

#include "bench/serve/dataset.h"

namespace baltoro {

inline constexpr uint64_t kPromptBytesMax = uint64_t{4} << 30;  // of all prompts of a run

// Adds a session of one request.
void AddPrompt(Dataset& out, std::string_view prompt, int64_t tokens, int64_t output, bool chat);
// {"role":"user","content":"..."}
void AppendMessage(std::string& out, std::string_view role, std::string_view content);
Status CheckBytes(double bytes);

Result<Dataset> BuildFromFile(const DatasetOptions& options, bool chat, const BenchText& text);
Result<Dataset> BuildAgent(const DatasetOptions& options, const BenchText& text);

}  // namespace baltoro
