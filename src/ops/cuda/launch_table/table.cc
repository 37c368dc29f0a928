#include "ops/cuda/launch_table/table.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <sstream>

#include "base/check.h"

namespace baltoro::cuda::launch_table {
namespace {

struct Answer {
  bool taken = false;
  std::vector<Launch> launches;

  // What two rows of one interval have in common: all but the grids and the shared bytes.
  std::string Key() const {
    if (!taken) return "not taken";
    std::string key;
    for (const Launch& launch : launches) {
      key += launch.name + " " + std::to_string(launch.block.x) + "x" +
             std::to_string(launch.block.y) + " " + std::to_string(launch.cluster) + "\n";
    }
    return key;
  }
};

std::string Text(const Size& size) {
  std::string text = std::to_string(size.x);
  if (size.y > 1 || size.z > 1) text.append("x").append(std::to_string(size.y));
  if (size.z > 1) text.append("x").append(std::to_string(size.z));
  return text;
}

// FNV-1a.
uint32_t Mixed(uint32_t sum, uint32_t value) {
  for (int byte = 0; byte < 4; ++byte) sum = (sum ^ (value >> (8 * byte) & 255)) * 16777619u;
  return sum;
}

// The line of an interval whose answers are of [first, last].
std::string Line(const std::map<int64_t, Answer>& answers, int64_t first, int64_t last) {
  const Answer &begin = answers.at(first), &end = answers.at(last);
  std::string line = std::to_string(first) + ".." + std::to_string(last) + " ";
  if (!begin.taken) return line + " not taken";
  if (begin.launches.empty()) return line + " none";
  uint32_t sum = 2166136261u;
  bool grows = false;
  for (size_t i = 0; i < begin.launches.size(); ++i) {
    const Launch& launch = begin.launches[i];
    line.append(i > 0 ? " + " : " ").append(launch.name);
    if (!launch.ours()) continue;
    bool same_grid = true, same_bytes = true;
    for (auto at = answers.find(first); at != answers.end() && at->first <= last; ++at) {
      const Launch& one = at->second.launches[i];
      same_grid = same_grid && one.grid == launch.grid;
      same_bytes = same_bytes && one.shared_bytes == launch.shared_bytes;
      for (const uint32_t size : {one.grid.x, one.grid.y, one.grid.z, one.shared_bytes}) {
        sum = Mixed(sum, size);
      }
    }
    grows = grows || !same_grid || !same_bytes;
    const Launch& at_end = end.launches[i];
    line.append(" ").append(Text(launch.grid));
    if (!same_grid) line.append(">").append(Text(at_end.grid));
    line.append("/").append(Text(launch.block));
    line.append("/").append(std::to_string(launch.shared_bytes));
    if (!same_bytes) line.append(">").append(std::to_string(at_end.shared_bytes));
    if (launch.cluster > 0) line.append("/c").append(std::to_string(launch.cluster));
  }
  if (!grows) return line;
  char digits[16];
  std::snprintf(digits, sizeof(digits), " #%08x", sum);
  return line + digits;
}

}  // namespace

std::vector<int64_t> RowsAsked(const RowRange& range) {
  std::set<int64_t> rows = {range.least, range.most};
  for (int64_t at = 1; at <= std::min(range.every, range.most); ++at) rows.insert(at);
  for (int64_t at = 64; at <= range.most; at += 64) rows.insert({at - 1, at, at + 1});
  std::erase_if(rows, [&](int64_t at) { return at < range.least || at > range.most; });
  return {rows.begin(), rows.end()};
}

std::vector<std::string> Intervals(const RowRange& range, const Ask& ask) {
  std::map<int64_t, Answer> answers;
  const auto key_at = [&](int64_t rows) {
    const auto [at, fresh] = answers.try_emplace(rows);
    if (fresh) at->second.taken = ask(rows, at->second.launches);
    return at->second.Key();
  };
  std::vector<std::string> lines;
  int64_t first = range.least, last = range.least;
  std::string key = key_at(first);
  for (const int64_t rows : RowsAsked(range)) {
    const std::string next = key_at(rows);
    if (next == key) {
      last = rows;
      continue;
    }
    // Between the two is one place where the answer changes: what is found in between and is
    // neither is an interval of its own.
    while (last < rows) {
      int64_t low = last, high = rows;
      while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (key_at(middle) == key ? low : high) = middle;
      }
      lines.push_back(Line(answers, first, low));
      first = last = high;
      key = key_at(high);
      if (key == next) break;
    }
    last = rows;
  }
  lines.push_back(Line(answers, first, last));
  return lines;
}

void Table::Add(const std::string& question, std::vector<std::string> answer) {
  BT_CHECK(answers_.emplace(question, std::move(answer)).second);
}

std::string Table::Text(const std::string& header) const {
  std::map<std::vector<std::string>, std::vector<std::string>> questions;
  for (const auto& [question, answer] : answers_) questions[answer].push_back(question);
  std::string text = header;
  for (const auto& [question, answer] : answers_) {
    const std::vector<std::string>& alike = questions[answer];
    if (alike.front() != question) continue;
    text += "\n";
    for (const std::string& one : alike) text += one + "\n";
    for (const std::string& line : answer) text += "  " + line + "\n";
  }
  return text;
}

Table Table::Parse(const std::string& text) {
  Table table;
  std::istringstream lines(text);
  std::vector<std::string> questions, answer;
  const auto end = [&] {
    for (const std::string& question : questions) table.Add(question, answer);
    questions.clear();
    answer.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      end();
    } else if (line.starts_with("  ")) {
      answer.push_back(line.substr(2));
    } else if (!line.starts_with("#")) {
      questions.push_back(line);
    }
  }
  end();
  return table;
}

const std::vector<std::string>* Table::AnswerOf(const std::string& question) const {
  const auto at = answers_.find(question);
  return at == answers_.end() ? nullptr : &at->second;
}

Table Table::Beginning(const std::vector<std::string>& beginnings) const {
  Table part;
  for (const auto& [question, answer] : answers_) {
    const auto begins = [&](const std::string& with) { return question.starts_with(with); };
    if (std::any_of(beginnings.begin(), beginnings.end(), begins)) part.Add(question, answer);
  }
  return part;
}

Table Table::Containing(const std::string& words) const {
  Table part;
  for (const auto& [question, answer] : answers_) {
    if (question.find(words) != std::string::npos) part.Add(question, answer);
  }
  return part;
}

Table Table::StartingWith(const std::string& words) const {
  Table part;
  for (const auto& [question, answer] : answers_) {
    if (question.starts_with(words)) part.Add(question, answer);
  }
  return part;
}

void Table::Take(const Table& other) {
  for (const auto& [question, answer] : other.answers_) Add(question, answer);
}

std::vector<std::string> Table::DifferencesFrom(const Table& before) const {
  std::set<std::string> questions;
  for (const auto& [question, answer] : answers_) questions.insert(question);
  for (const auto& [question, answer] : before.answers_) questions.insert(question);
  std::vector<std::string> lines;
  for (const std::string& question : questions) {
    const auto was = before.answers_.find(question), is = answers_.find(question);
    const std::vector<std::string> none;
    const auto& old_lines = was == before.answers_.end() ? none : was->second;
    const auto& new_lines = is == answers_.end() ? none : is->second;
    if (old_lines == new_lines) continue;
    lines.push_back(question);
    const auto lacks = [](const std::vector<std::string>& all, const std::string& one) {
      return std::find(all.begin(), all.end(), one) == all.end();
    };
    for (const std::string& line : old_lines) {
      if (lacks(new_lines, line)) lines.push_back("  - " + line);
    }
    for (const std::string& line : new_lines) {
      if (lacks(old_lines, line)) lines.push_back("  + " + line);
    }
  }
  return lines;
}

}  // namespace baltoro::cuda::launch_table
