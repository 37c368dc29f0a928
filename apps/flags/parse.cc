#include "flags/parse.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "flags/value.h"

namespace baltoro {
namespace {

constexpr size_t kDottedPartsMax = 16;

bool LooksLikeNegativeNumber(std::string_view text) {
  if (!text.starts_with('-')) return false;
  text.remove_prefix(1);
  const size_t dot = text.find('.');
  const std::string_view whole = text.substr(0, dot);
  const std::string_view fraction =
      dot == std::string_view::npos ? std::string_view() : text.substr(dot + 1);
  auto digits = [](std::string_view part) {
    return part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return digits(whole) && digits(fraction) &&
         !(dot == std::string_view::npos ? whole : fraction).empty();
}

// One word of the command line that is an option, taken apart.
struct Option {
  std::string name;                  // "--max-num-seqs", dashes for underscores, no dotted part
  std::vector<std::string> path;     // of a dotted part: {"cudagraph_mode"}
  bool append = false;               // the dotted part ended in '+'
  std::optional<std::string> value;  // what followed '='
};

Option TakeApart(std::string_view word) {
  Option option;
  const size_t equals = word.find('=');
  if (equals != std::string_view::npos) option.value = std::string(word.substr(equals + 1));
  std::string_view name = word.substr(0, equals);
  const size_t dot = name.find('.');
  option.name = std::string(name.substr(0, dot));
  if (word.starts_with("--")) std::replace(option.name.begin(), option.name.end(), '_', '-');
  if (dot != std::string_view::npos) {
    std::string_view path = name.substr(dot + 1);
    if (path.ends_with('+')) {
      option.append = true;
      path.remove_suffix(1);
    }
    for (std::string_view part : SplitText(path, '.')) option.path.emplace_back(part);
    if (option.path.empty()) option.path.emplace_back();  // "--x." : refused with its name
  }
  return option;
}

bool IsOption(const FlagTable& table, const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return false;
  if (table.Knows(TakeApart(word).name)) return true;
  return !LooksLikeNegativeNumber(word) && word.find(' ') == std::string::npos;
}

// Puts `update` over `target`: objects merge, lists grow, anything else is replaced and named in
// `replaced`.
void Merge(Json& target,
           const Json& update,
           const std::string& name,
           std::vector<std::string>& replaced) {
  for (const auto& [key, value] : update.items()) {
    const std::string path = fmt::format("{}.{}", name, key);
    const auto there = target.find(key);
    if (there == target.end()) {
      target[key] = value;
    } else if (there->is_object() && value.is_object()) {
      Merge(*there, value, path, replaced);
    } else if (there->is_array() && value.is_array()) {
      there->insert(there->end(), value.begin(), value.end());
    } else {
      *there = value;
      replaced.push_back(path);
    }
  }
}

class Parser {
 public:
  Parser(const FlagTable& table, std::span<const std::string> args, ParsedFlags below)
      : table_(table), args_(args), parsed_(std::move(below)) {
    for (auto& [name, use] : parsed_.uses) use.times = 0;
  }

  Result<ParsedFlags> Run() {
    while (next_ < args_.size()) {
      const std::string& word = args_[next_];
      if (word == "--") {
        parsed_.positionals.insert(parsed_.positionals.end(),
                                   args_.begin() + static_cast<long>(next_) + 1, args_.end());
        break;
      }
      ++next_;
      if (IsOption(table_, word)) {
        BT_RETURN_IF_ERROR(Take(word));
      } else {
        parsed_.positionals.push_back(word);
      }
    }
    BT_RETURN_IF_ERROR(ApplyDotted());
    if (!duplicates_.empty()) {
      parsed_.notices.push_back(
          fmt::format("Found duplicate keys {}", fmt::join(duplicates_, ", ")));
    }
    return std::move(parsed_);
  }

 private:
  Status Take(const std::string& word) {
    Option option = TakeApart(word);
    Result<FlagMatch> match = table_.Find(option.name);
    if (!match.ok() && !table_.Knows(option.name) && !word.starts_with("--") && word.size() > 2) {
      // "-n2", "-O3": a flag of one letter with its value attached.
      Result<FlagMatch> letter = table_.Find(word.substr(0, 2));
      if (letter.ok() && letter.value().spelling.size() == 2) {
        match = std::move(letter);
        option =
            Option{.name = word.substr(0, 2), .path = {}, .append = false, .value = word.substr(2)};
      }
    }
    if (!match.ok()) return match.status();
    const FlagMatch& flag = match.value();
    if (!option.path.empty()) return TakeDotted(flag, option);
    const ValueKind kind = flag.spec->kind;
    if (kind == ValueKind::kBool || kind == ValueKind::kSwitch) {
      if (option.value) {
        return Wrong(flag, fmt::format("ignored explicit argument '{}'", *option.value));
      }
      return Record(flag, Json(!flag.negated));
    }
    std::vector<std::string> words;
    if (option.value) {
      words.push_back(*option.value);
    } else {
      const bool many = kind == ValueKind::kStrings || kind == ValueKind::kInts;
      while (next_ < args_.size() && (many || words.empty()) && args_[next_] != "--" &&
             !IsOption(table_, args_[next_])) {
        words.push_back(args_[next_++]);
      }
      if (words.empty()) {
        return Wrong(flag, many ? "expected at least one argument" : "expected one argument");
      }
    }
    Result<Json> value = ParseValue(*flag.spec, words);
    if (!value.ok()) return Wrong(flag, value.status().message());
    return Record(flag, std::move(value).value());
  }

  Status TakeDotted(const FlagMatch& flag, const Option& option) {
    const std::string name = fmt::format("{}.{}", flag.spelling, fmt::join(option.path, "."));
    if (flag.spec->kind != ValueKind::kJsonObject) {
      return InvalidArgument(
          fmt::format("argument {}: {} takes no JSON, so it has no parts", name, flag.spelling));
    }
    if (option.path.size() > kDottedPartsMax ||
        std::find(option.path.begin(), option.path.end(), "") != option.path.end()) {
      return InvalidArgument(
          fmt::format("argument {}: expected 1 to {} names between dots", name, kDottedPartsMax));
    }
    std::string text;
    if (option.value) {
      text = *option.value;
    } else if (next_ < args_.size()) {
      text = args_[next_++];
    } else {
      return InvalidArgument(fmt::format("argument {}: expected one argument", name));
    }
    Json value;
    if (option.append) {
      value = Json::array();
      for (std::string_view part : SplitText(text, ',')) value.push_back(std::string(part));
    } else {
      Result<Json> json = ParseJson(text);
      value = json.ok() ? std::move(json).value() : Json(text);
    }
    AddDotted(flag, option.path, std::move(value));
    return Status();
  }

  void AddDotted(const FlagMatch& flag, const std::vector<std::string>& path, Json value) {
    for (auto part = path.rbegin(); part != path.rend(); ++part) {
      Json object = Json::object();
      object[*part] = std::move(value);
      value = std::move(object);
    }
    FlagUse& use = dotted_[std::string(flag.spec->name)];
    if (use.spec == nullptr) {
      use = FlagUse{
          .spec = flag.spec, .spelling = flag.spelling, .value = Json::object(), .times = 1};
    }
    Merge(use.value, value, flag.spelling, duplicates_);
  }

  // A flag that has become a key of another one, as if that had been given.
  Status RecordPart(const FlagMatch& flag, Json value) {
    const std::string_view part = flag.spec->part_of;
    const size_t dot = part.find('.');
    BT_ASSIGN_OR_RETURN(const FlagMatch whole,
                        table_.Find("--" + std::string(part.substr(0, dot))));
    AddDotted(whole, {std::string(part.substr(dot + 1))}, std::move(value));
    parsed_.moved[std::string(part)] = flag.spelling;
    parsed_.notices.push_back(
        fmt::format("{} is of older versions of vLLM; it is taken as --{}", flag.spelling, part));
    return Status();
  }

  // Dotted parts go over the flag's own JSON, wherever on the line they stood.
  Status ApplyDotted() {
    for (auto& [name, dotted] : dotted_) {
      FlagUse& use = parsed_.uses[name];
      if (use.spec == nullptr) {
        use = dotted;
        continue;
      }
      std::vector<std::string> ignored;  // going over a file's value is what precedence means
      Merge(use.value, dotted.value, dotted.spelling, use.times > 0 ? duplicates_ : ignored);
      use.times += 1;
    }
    return Status();
  }

  Status Record(const FlagMatch& flag, Json value) {
    if (flag.spec->state == FlagState::kMoved) return RecordPart(flag, std::move(value));
    FlagUse& use = parsed_.uses[std::string(flag.spec->name)];
    const int times = use.times + 1;
    if (flag.spec->kind == ValueKind::kEach) {
      if (times > 1) value.insert(value.begin(), use.value.begin(), use.value.end());
    } else if (times == 2)
      duplicates_.push_back("--" + std::string(flag.spec->name));
    use = FlagUse{
        .spec = flag.spec, .spelling = flag.spelling, .value = std::move(value), .times = times};
    return Status();
  }

  static Status Wrong(const FlagMatch& flag, std::string_view why) {
    std::string names = "--" + std::string(flag.spec->name);
    if (flag.spelling != names) names = flag.spelling + "/" + names;
    return InvalidArgument(fmt::format("argument {}: {}", names, why));
  }

  const FlagTable& table_;
  std::span<const std::string> args_;
  size_t next_ = 0;
  ParsedFlags parsed_;
  std::map<std::string, FlagUse> dotted_;
  std::vector<std::string> duplicates_;
};

}  // namespace

Result<ParsedFlags> ParseFlags(const FlagTable& table,
                               std::span<const std::string> args,
                               ParsedFlags below) {
  return Parser(table, args, std::move(below)).Run();
}

}  // namespace baltoro
