#pragma once

// What is measured: a kind of input that can be made in any size, and what the product does with
// it. README.md says how.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "text/tokenizer.h"

namespace baltoro::work {

using Work = std::function<void()>;

struct WorkCase {
  std::string name;
  size_t size;  // the smallest of the three that are measured; the others are twice and four times
  // Makes the input, which is not counted. The work that is returned is done once.
  std::function<Work(size_t)> prepare;
};

std::vector<WorkCase> JsonCases();
std::vector<WorkCase> NetCases();
std::vector<WorkCase> TokenizerCases();
std::vector<WorkCase> TemplateCases();
std::vector<WorkCase> AnswerCases();
std::vector<WorkCase> GrammarCases();
std::vector<WorkCase> RequestCases();
std::vector<WorkCase> PullCases();
// What grows faster than its input, so that it is known that this would be found.
std::vector<WorkCase> PlantedCases();

// Of the pocket model.
const Tokenizer& Words();

// `piece` again and again, `count` times.
inline std::string Times(size_t count, std::string_view piece) {
  std::string out;
  out.reserve(count * piece.size());
  for (size_t i = 0; i < count; ++i) out += piece;
  return out;
}

// What `write` makes of 0, 1, ... with commas between.
inline std::string Listed(size_t count, const std::function<std::string(size_t)>& write) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += ',';
    out += write(i);
  }
  return out;
}

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) CheckFailed(__FILE__, __LINE__, result.status().message().c_str());
  return std::move(result).value();
}

}  // namespace baltoro::work
