#pragma once

// What the builders of data sets share. Private to dataset.cc and the files beside it.

#include <random>
#include <string>

#include "bench/serve/dataset.h"

namespace baltoro {

inline constexpr uint64_t kPromptBytesMax = uint64_t{4} << 30;  // of all prompts of a run

// Adds a session of one request. `tokens` are those of the text; `pictures` are URLs, which go
// behind it, with `chat` only.
void AddPrompt(Dataset& out,
               std::string_view prompt,
               int64_t tokens,
               int64_t output,
               bool chat,
               const std::vector<std::string>& pictures = {});
// {"role":"user","content":"..."}
void AppendMessage(std::string& out, std::string_view role, std::string_view content);
Status CheckBytes(double bytes);

// URLs of the pictures in a field of a row, one or a list, `most` of them: as they are, or made of
// base64 or of a file, whose path begins at `folder`. None where there is no such field. An error
// begins with the field.
Result<std::vector<std::string>> RowPictures(const Json& row,
                                             std::string_view field,
                                             size_t most,
                                             const std::string& folder);

Result<Dataset> BuildFromFile(const DatasetOptions& options, bool chat, const BenchText& text);
Result<Dataset> BuildAgent(const DatasetOptions& options, const BenchText& text);

}  // namespace baltoro
