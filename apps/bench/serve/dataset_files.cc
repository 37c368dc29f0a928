// Prompts from files: sharegpt (one JSON array), custom (a prompt a line; with pictures as
// custom_mm), hf (rows of whatever data set, a JSON object a line).

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/file.h"
#include "base/json_scanner.h"
#include "bench/serve/dataset_parts.h"
#include "flags/hub_places.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFileBytesMax = uint64_t{4} << 30;
constexpr JsonLimits kRowLimits{.depth = 64, .nodes = 10'000'000, .reject_duplicate_keys = false};
constexpr int64_t kHfOutput = 128;
constexpr uint64_t kRefBytesMax = 256;
constexpr size_t kAllPictures = std::numeric_limits<size_t>::max();

int64_t CountTokens(const BenchText& text, std::string_view prompt) {
  if (text.tokenizer == nullptr) return 0;
  return static_cast<int64_t>(text.tokenizer->EncodeWithSpecials(prompt).size());
}

// Repeats sessions until there are enough, each drawn from those that came from the file.
Status Oversample(const DatasetOptions& options, Dataset& out, std::mt19937_64& random) {
  const size_t own = out.sessions.size(), wanted = static_cast<size_t>(options.prompts);
  if (own >= wanted || own == 0) return {};
  out.notices.push_back(fmt::format("{} has {} fitting prompts{}", options.path, own,
                                    options.oversample ? "; some are sent again" : ""));
  std::uniform_int_distribution<size_t> which(0, own - 1);
  size_t bytes = 0;
  for (const BenchSession& session : out.sessions) bytes += session.text.size();
  BT_RETURN_IF_ERROR(CheckBytes(static_cast<double>(bytes) / static_cast<double>(own) *
                                static_cast<double>(options.oversample ? wanted : own)));
  while (options.oversample && out.sessions.size() < wanted) {
    const BenchSession again = out.sessions[which(random)];
    out.sessions.push_back(again);
  }
  return {};
}

// --- sharegpt -------------------------------------------------------------------------------

struct Exchange {
  std::string prompt, answer;
};

// The first two turns of each conversation that has two.
Result<std::vector<Exchange>> ReadShareGpt(const std::string& path) {
  BT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kFileBytesMax, "--dataset-path"));
  JsonScanner scan(text);
  std::vector<Exchange> out;
  std::string key;
  scan.BeginArray();
  while (scan.NextElement()) {
    Exchange exchange;
    size_t turns = 0;
    scan.BeginObject();
    while (scan.NextKey(key)) {
      if (key != "conversations" || scan.Peek() != '[') {
        scan.Skip();
        continue;
      }
      scan.BeginArray();
      for (turns = 0; scan.NextElement(); ++turns) {
        scan.BeginObject();
        while (scan.NextKey(key)) {
          const bool wanted = key == "value" && turns < 2 && scan.Peek() == '"';
          if (wanted ? !scan.String(turns == 0 ? exchange.prompt : exchange.answer)
                     : !scan.Skip()) {
            break;
          }
        }
      }
    }
    if (turns >= 2 && scan.ok()) out.push_back(std::move(exchange));
  }
  if (scan.End()) return out;
  return InvalidArgument(
      fmt::format("--dataset-path {}: not an array of objects with "
                  "conversations, as ShareGPT's: {}",
                  path, scan.status().message()));
}

// As upstream: neither too short to mean anything nor longer than old models took.
bool LengthsFit(int64_t prompt, int64_t output, bool output_given) {
  return prompt >= 4 && (output_given || output >= 4) && prompt <= 1024 && prompt + output <= 2048;
}

Result<Dataset> BuildShareGpt(const DatasetOptions& options, bool chat, const BenchText& text) {
  BT_ASSIGN_OR_RETURN(std::vector<Exchange> exchanges, ReadShareGpt(options.path));
  std::mt19937_64 random(options.seed);
  if (options.shuffle) std::ranges::shuffle(exchanges, random);
  Dataset out;
  for (const Exchange& each : exchanges) {
    if (std::ssize(out.sessions) == options.prompts) break;
    const int64_t prompt = CountTokens(text, each.prompt);
    const int64_t output = options.sharegpt_output.value_or(CountTokens(text, each.answer));
    if (!LengthsFit(prompt, output, options.sharegpt_output.has_value())) continue;
    AddPrompt(out, each.prompt, prompt, output, chat);
  }
  BT_RETURN_IF_ERROR(Oversample(options, out, random));
  return out;
}

// --- lines ----------------------------------------------------------------------------------

struct Line {
  size_t number;  // from 1
  std::string_view text;
};

std::vector<Line> LinesOf(std::string_view text) {
  std::vector<Line> lines;
  size_t number = 0;
  for (const std::string_view line : SplitText(text, '\n')) {
    ++number;
    if (line.find_first_not_of(" \t\r") != line.npos) lines.push_back({number, line});
  }
  return lines;
}

Result<Json> ReadRow(const std::string& path, const Line& line) {
  Result<Json> row = ParseJson(line.text, kRowLimits);
  if (row.ok() && row.value().is_object()) return row;
  return InvalidArgument(fmt::format("--dataset-path {}:{}: {}", path, line.number,
                                     row.ok() ? "not a JSON object" : row.status().message()));
}

Result<std::string> Rendered(const std::string& prompt, const BenchText& text) {
  if (text.chat_template == nullptr) {
    return InvalidArgument(
        "--dataset-name custom puts prompts into the model's chat template, and "
        "there is none: give --tokenizer DIR, or --skip-chat-template");
  }
  const Json messages = Json::array({{{"role", "user"}, {"content", prompt}}});
  BT_ASSIGN_OR_RETURN(const std::vector<TextSegment> segments,
                      text.chat_template->Render({.messages = &messages}));
  std::string out;
  for (const TextSegment& segment : segments) out += segment.text;
  return out;
}

Result<Dataset> BuildCustom(const DatasetOptions& options, bool chat, const BenchText& text) {
  BT_ASSIGN_OR_RETURN(const std::string file,
                      ReadFile(options.path, kFileBytesMax, "--dataset-path"));
  std::vector<Line> lines = LinesOf(file);
  std::mt19937_64 random(options.seed);
  if (options.shuffle) std::ranges::shuffle(lines, random);
  Dataset out;
  for (const Line& line : lines) {
    if (std::ssize(out.sessions) == options.prompts) break;
    BT_ASSIGN_OR_RETURN(const Json row, ReadRow(options.path, line));
    const auto wrong = [&](std::string_view what) {
      return InvalidArgument(
          fmt::format("--dataset-path {}:{}: {}", options.path, line.number, what));
    };
    const auto prompt = row.find("prompt"), length = row.find("output_tokens");
    if (prompt == row.end() || !prompt->is_string()) return wrong("there is no text \"prompt\"");
    int64_t output = options.custom_output;
    if (output < 0) {
      if (length == row.end() || !length->is_number_integer() || *length < 1) {
        return wrong("--custom-output-len -1 needs a number \"output_tokens\" in every line");
      }
      output = length->get<int64_t>();
    }
    std::string sent = prompt->get<std::string>();
    if (!chat && options.chat_template) {
      BT_ASSIGN_OR_RETURN(sent, Rendered(sent, text));
    }
    std::vector<std::string> pictures;
    if (options.name == "custom_mm") {
      const std::string folder = fs::path(options.path).parent_path().string();
      Result<std::vector<std::string>> read = RowPictures(row, "image_files", kAllPictures, folder);
      if (!read.ok()) return wrong(read.status().message());
      pictures = std::move(read).value();
    }
    AddPrompt(out, sent, CountTokens(text, sent), output, chat, pictures);
  }
  BT_RETURN_IF_ERROR(Oversample(options, out, random));
  return out;
}

// --- hf -------------------------------------------------------------------------------------

// The text of a message's content: text itself, or the first part that is text.
std::optional<std::string> ContentText(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  for (const Json& part : content.is_array() ? content : Json::array()) {
    if (part.is_object() && part.contains("text") && part["text"].is_string()) {
      return part["text"].get<std::string>();
    }
  }
  return std::nullopt;
}

// Whether a turn is a user's, as far as it says whose it is.
bool IsUsers(const Json& turn) {
  for (const char* field : {"role", "from"}) {
    const auto role = turn.find(field);
    if (role != turn.end() && role->is_string()) return *role == "user" || *role == "human";
  }
  return true;
}

// The first thing that a user says in a row, under the names that data sets have for it.
std::optional<std::string> FirstPrompt(const Json& row) {
  for (const char* name : {"conversation", "conversations", "messages", "turns"}) {
    if (!row.contains(name) || !row[name].is_array() || row[name].empty()) continue;
    const Json* turns = &row[name];
    if (turns->front().is_array() && !turns->front().empty()) turns = &turns->front();
    for (const Json& turn : *turns) {
      if (turn.is_string()) return turn.get<std::string>();
      if (!turn.is_object()) continue;
      if (!IsUsers(turn)) continue;
      for (const char* field : {"content", "value"}) {
        if (turn.contains(field)) return ContentText(turn[field]);
      }
    }
  }
  for (const char* name :
       {"prompt", "question", "instruction", "problem", "query", "text", "input"}) {
    if (row.contains(name) && row[name].is_string()) return row[name].get<std::string>();
  }
  return std::nullopt;
}

// The first picture of a row, as upstream takes it.
Result<std::vector<std::string>> FirstPicture(const Json& row, const std::string& folder) {
  for (const char* name : {"images", "image"}) {
    BT_ASSIGN_OR_RETURN(std::vector<std::string> found, RowPictures(row, name, 1, folder));
    if (!found.empty()) return found;
  }
  return std::vector<std::string>();
}

bool HasPictures(const Json& row) {
  for (const char* name : {"images", "image"}) {
    if (row.contains(name) && !row[name].is_null() && !row[name].empty()) return true;
  }
  return false;
}

// Whether it can be the name of a data set of a hub.
bool IsHubName(const std::string& path) {
  return std::count(path.begin(), path.end(), '/') == 1 && path[0] != '.' && path[0] != '/';
}

// Where `hf download --repo-type dataset` leaves one; empty: it has not.
std::string CachedDataset(const std::string& cache, const std::string& name) {
  const fs::path folder = fs::path(cache) / DatasetCacheFolderOf(name);
  const Result<std::string> main = ReadFile((folder / "refs/main").string(), kRefBytesMax);
  if (!main.ok() || main.value().find('/') != std::string::npos) return "";
  std::error_code ignored;
  const fs::path snapshot = folder / "snapshots" / main.value();
  return fs::is_directory(snapshot, ignored) ? snapshot.string() : "";
}

Status NotHere(const std::string& path) {
  if (!IsHubName(path))
    return Status(Code::kNotFound, "--dataset-path " + path + ": no such file or folder");
  return Status(Code::kNotFound,
                fmt::format("--dataset-path {0}: nothing is downloaded here, and there is neither "
                            "such a folder nor a data set of this name in the cache of Hugging "
                            "Face (HF_HOME): `hf download --repo-type dataset {0}`",
                            path));
}

// Lines beside the file, so that they are found where it was.
Status NeedsConversion(const DatasetOptions& options, const std::string& parquet) {
  std::string lines = parquet.substr(0, parquet.size() - std::string_view(".parquet").size());
  lines += ".jsonl";
  return InvalidArgument(fmt::format(
      "--dataset-path {}: Parquet is not read here; this command makes lines of JSON of its first "
      "{} rows: python3 -c \"import base64, itertools, json, pyarrow.parquet as p; f = lambda v: "
      "base64.b64encode(v).decode() if isinstance(v, bytes) else str(v); rows = (r for b in "
      "p.ParquetFile('{}').iter_batches(64) for r in b.to_pylist()); open('{}', "
      "'w').writelines(json.dumps(r, default=f) + chr(10) for r in itertools.islice(rows, {}))\"; "
      "then {}",
      options.path, options.prompts, parquet, lines, options.prompts,
      options.path == parquet ? "--dataset-path " + lines : "the same command again"));
}

// The file itself, or the .jsonl files below a folder, sorted.
Result<std::vector<std::string>> FilesOf(const DatasetOptions& options) {
  std::error_code ignored;
  std::string path = options.path;
  if (!fs::exists(path, ignored) && IsHubName(path)) path = CachedDataset(options.hf_cache, path);
  if (!fs::exists(path, ignored)) return NotHere(options.path);
  if (!fs::is_directory(path, ignored)) {
    if (path.ends_with(".parquet")) return NeedsConversion(options, path);
    return std::vector<std::string>{path};
  }
  std::vector<std::string> files, parquets;
  std::error_code failed;
  fs::recursive_directory_iterator entries(path, failed);
  for (; !failed && entries != fs::recursive_directory_iterator(); entries.increment(failed)) {
    const std::string file = entries->path().string();
    const std::string inside = file.substr(path.size());
    if (inside.find(options.hf_subset) == file.npos || inside.find(options.hf_split) == file.npos) {
      continue;
    }
    if (file.ends_with(".jsonl")) files.push_back(file);
    if (file.ends_with(".parquet")) parquets.push_back(file);
  }
  if (failed) {
    return InvalidArgument(
        fmt::format("--dataset-path {}: cannot list all of it: {}", path, failed.message()));
  }
  std::ranges::sort(files);
  if (!files.empty()) return files;
  if (!parquets.empty()) return NeedsConversion(options, *std::ranges::min_element(parquets));
  return Status(Code::kNotFound,
                fmt::format("--dataset-path {}: there is no .jsonl file in it{}", path,
                            options.hf_subset.empty() && options.hf_split.empty()
                                ? ""
                                : " that --hf-subset and --hf-split allow"));
}

Result<Dataset> BuildHf(const DatasetOptions& options, bool chat, const BenchText& text) {
  BT_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(options));
  std::mt19937_64 random(options.seed);
  Dataset out;
  int64_t left_out = 0;
  for (const std::string& path : files) {
    if (std::ssize(out.sessions) == options.prompts) break;
    BT_ASSIGN_OR_RETURN(const std::string file, ReadFile(path, kFileBytesMax, "--dataset-path"));
    std::vector<Line> lines = LinesOf(file);
    if (options.shuffle) std::ranges::shuffle(lines, random);
    for (const Line& line : lines) {
      if (std::ssize(out.sessions) == options.prompts) break;
      BT_ASSIGN_OR_RETURN(const Json row, ReadRow(path, line));
      const std::optional<std::string> prompt = FirstPrompt(row);
      if (!prompt) {
        return InvalidArgument(fmt::format(
            "--dataset-path {}:{}: no prompt in this row: neither conversation, conversations, "
            "messages or turns, nor prompt, question, instruction, problem, query, text or input",
            path, line.number));
      }
      std::vector<std::string> pictures;
      if (chat) {
        Result<std::vector<std::string>> read =
            FirstPicture(row, fs::path(path).parent_path().string());
        if (!read.ok()) {
          return InvalidArgument(
              fmt::format("--dataset-path {}:{}: {}", path, line.number, read.status().message()));
        }
        pictures = std::move(read).value();
      } else if (HasPictures(row)) {
        ++left_out;
      }
      AddPrompt(out, *prompt, CountTokens(text, *prompt), options.hf_output.value_or(kHfOutput),
                chat, pictures);
    }
  }
  if (left_out > 0) {
    out.notices.push_back(fmt::format(
        "{} prompts have pictures, which are left out: --backend openai-chat sends them",
        left_out));
  }
  BT_RETURN_IF_ERROR(Oversample(options, out, random));
  return out;
}

}  // namespace

Result<Dataset> BuildFromFile(const DatasetOptions& options, bool chat, const BenchText& text) {
  Result<Dataset> out = options.name == "sharegpt" ? BuildShareGpt(options, chat, text)
                        : options.name == "hf"     ? BuildHf(options, chat, text)
                                                   : BuildCustom(options, chat, text);
  if (!out.ok() || !out.value().sessions.empty()) return out;
  return InvalidArgument(fmt::format("--dataset-path {}: no prompt in it fits", options.path));
}

}  // namespace baltoro
