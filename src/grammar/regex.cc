#include "grammar/regex.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/utf8.h"
#include "grammar/regex_parser.h"

namespace baltoro {

using Expr = GrammarBuilder::Expr;

namespace {

constexpr int64_t kMaxMatchSteps = 20'000'000;
constexpr int64_t kLoosenedFrom = 8;  // fewer places are not worth a counter
constexpr int64_t kCountedLength = 4096;
constexpr char kHexDigits[] = "0123456789abcdef";

CharSet AllCharacters() {
  return CharSet{{0, 0x10FFFF}};
}

}  // namespace

Expr AddJsonSpelling(GrammarBuilder& builder, const CharSet& set) {
  static const CharSet kEscaped = {{0, 0x1F}, {U'"', U'"'}, {U'\\', U'\\'}};
  std::vector<Expr> ways;
  const CharSet raw = set.Without(kEscaped);
  if (!raw.empty()) ways.push_back(builder.CodePoints(raw.ranges()));
  constexpr std::pair<char32_t, const char*> kShort[] = {
      {U'"', "\\\""}, {U'\\', "\\\\"}, {8, "\\b"}, {9, "\\t"},
      {10, "\\n"},    {12, "\\f"},     {13, "\\r"}};
  CharSet rest = set;
  for (const auto& [code, spelling] : kShort) {
    if (set.Contains(code)) ways.push_back(builder.Literal(spelling));
    rest = rest.Without({{code, code}});
  }
  for (char32_t code = 0; code < 0x20; ++code) {
    if (!rest.Contains(code)) continue;
    std::string spelling = code < 0x10 ? "\\u000" : "\\u001";
    spelling += kHexDigits[code & 15];
    ways.push_back(builder.Literal(spelling));
  }
  if (ways.empty()) return builder.Nothing();
  return ways.size() == 1 ? ways[0] : builder.Choice(ways);
}

class RegexEmitter {
 public:
  // `loose`: what repeats up to a bound that is no small one repeats without end.
  RegexEmitter(const Regex& regex,
               GrammarBuilder& builder,
               const RegexOptions& options,
               bool loose = false)
      : regex_(regex), builder_(builder), options_(options), loose_(loose) {}

  // The length of the longest text, if counting characters may say what the bounds of the
  // expression say.
  std::optional<int64_t> CountableLength() const {
    if (options_.widest) return std::nullopt;
    for (const Regex::Variant& variant : regex_.variants_) {
      if (!options_.anchored && !(variant.at_start && variant.at_end)) return std::nullopt;
    }
    const bool any =
        std::any_of(regex_.nodes_.begin(), regex_.nodes_.end(), [](const Regex::Node& node) {
          return node.kind == Regex::Kind::kRepeat && IsLoosened(node);
        });
    int64_t min = 0, max = 0;
    regex_.Lengths(regex_.root_, min, max);
    if (!any || max == GrammarBuilder::kUnbounded || max > kCountedLength) return std::nullopt;
    return max;
  }

  Expr Character() { return Set(AllCharacters()); }

  Expr Whole() {
    std::vector<Expr> ways;
    for (const Regex::Variant& variant : regex_.variants_) {
      std::vector<Expr> parts;
      if (!options_.anchored && !variant.at_start) parts.push_back(Anything());
      for (const uint32_t part : variant.parts) parts.push_back(One(part));
      if (variant.at_end) {
        // Some dialects let `$` stand before a last newline.
        if (options_.widest) parts.push_back(builder_.Optional(Set({{U'\n', U'\n'}})));
      } else if (!options_.anchored) {
        parts.push_back(Anything());
      }
      ways.push_back(parts.empty() ? builder_.Empty() : builder_.Sequence(parts));
    }
    return ways.size() == 1 ? ways[0] : builder_.Choice(ways);
  }

  std::optional<Expr> OfLength(int64_t min, int64_t max) {
    std::vector<Expr> ways;
    for (const Regex::Variant& variant : regex_.variants_) {
      const auto way = OfLength(variant, min, max);
      if (!way) return std::nullopt;
      ways.push_back(*way);
    }
    return ways.size() == 1 ? ways[0] : builder_.Choice(ways);
  }

 private:
  std::optional<Expr> OfLength(const Regex::Variant& variant, int64_t min, int64_t max) {
    const bool at_start = variant.at_start || options_.anchored;
    const bool at_end = variant.at_end || options_.anchored;
    const bool bounded = max != GrammarBuilder::kUnbounded;
    if (!at_start && !at_end) return std::nullopt;
    if (at_start && at_end && variant.parts.size() == 1) {
      const Regex::Node& node = regex_.nodes_[variant.parts[0]];
      if (node.kind == Regex::Kind::kRepeat &&
          regex_.nodes_[node.children[0]].kind == Regex::Kind::kClass) {
        int64_t most = node.max;
        if (bounded) most = most == GrammarBuilder::kUnbounded ? max : std::min(most, max);
        return builder_.Repeat(One(node.children[0]), std::max(min, node.min), most);
      }
    }
    std::vector<Expr> parts;
    int64_t least = 0, most = 0;
    for (const uint32_t part : variant.parts) {
      int64_t part_min = 0, part_max = 0;
      regex_.Lengths(part, part_min, part_max);
      least += part_min;
      if (part_max == GrammarBuilder::kUnbounded) most = part_max;
      if (most != GrammarBuilder::kUnbounded) most += part_max;
      parts.push_back(One(part));
    }
    const bool endless = most == GrammarBuilder::kUnbounded;
    if (bounded && (endless || most > max)) return std::nullopt;
    if (at_start && at_end) {
      if (least < min) return std::nullopt;
    } else {
      const Expr rest = builder_.Repeat(Set(AllCharacters()), std::max<int64_t>(min - least, 0),
                                        bounded ? max - most : max);
      if (bounded && min - least > max - most) return std::nullopt;
      parts.insert(at_start ? parts.end() : parts.begin(), rest);
    }
    return parts.empty() ? builder_.Empty() : builder_.Sequence(parts);
  }

  Expr Anything() { return builder_.Repeat(Set(AllCharacters()), 0, GrammarBuilder::kUnbounded); }

  Expr Set(const CharSet& set) {
    if (options_.json_spelling) return AddJsonSpelling(builder_, set);
    return set.empty() ? builder_.Nothing() : builder_.CodePoints(set.ranges());
  }

  // The tree is as deep as its groups and quantifiers, which the parser bounds.
  Expr One(uint32_t index) {
    const auto found = made_.find(index);
    if (found != made_.end()) return found->second;
    const Regex::Node& node = regex_.nodes_[index];
    Expr out{};
    if (node.kind == Regex::Kind::kClass) {
      const Regex::ClassSet& set = regex_.sets_[node.set];
      out = Set(options_.widest ? set.maybe : set.sure);
    } else {
      std::vector<Expr> children;
      for (const uint32_t child : node.children) children.push_back(One(child));
      if (node.kind == Regex::Kind::kRepeat) {
        const bool endless = loose_ && IsLoosened(node);
        out =
            builder_.Repeat(children[0], node.min, endless ? GrammarBuilder::kUnbounded : node.max);
      } else if (node.kind == Regex::Kind::kChoice) {
        out = builder_.Choice(children);
      } else {
        out = children.empty() ? builder_.Empty() : builder_.Sequence(children);
      }
    }
    made_.emplace(index, out);
    return out;
  }

  static bool IsLoosened(const Regex::Node& node) {
    return node.max != GrammarBuilder::kUnbounded && node.max - node.min >= kLoosenedFrom;
  }

  const Regex& regex_;
  GrammarBuilder& builder_;
  const RegexOptions& options_;
  const bool loose_;
  std::map<uint32_t, Expr> made_;
};

// Follows all places of the text at once, so that no pattern takes more than size * length steps.
class RegexSimulation {
 public:
  using Places = std::vector<bool>;  // [length + 1]

  RegexSimulation(const Regex& regex, std::u32string text, bool widest, CompileBudget* budget)
      : regex_(regex), text_(std::move(text)), widest_(widest), budget_(budget) {}

  Places Step(uint32_t index, const Places& from) {
    const Regex::Node& node = regex_.nodes_[index];
    steps_ += static_cast<int64_t>(from.size());
    if (budget_ != nullptr) budget_->Charge(static_cast<int64_t>(from.size()));
    if (spent()) return Places(from.size(), false);
    switch (node.kind) {
      case Regex::Kind::kClass: {
        const Regex::ClassSet& sets = regex_.sets_[node.set];
        const CharSet& set = widest_ ? sets.maybe : sets.sure;
        Places out(from.size(), false);
        for (size_t i = 0; i < text_.size(); ++i) out[i + 1] = from[i] && set.Contains(text_[i]);
        return out;
      }
      case Regex::Kind::kStart: {
        Places out(from.size(), false);
        out[0] = from[0];
        return out;
      }
      case Regex::Kind::kEnd: {
        Places out(from.size(), false);
        out.back() = from.back();
        if (widest_ && !text_.empty() && text_.back() == U'\n') {
          out[text_.size() - 1] = from[text_.size() - 1];
        }
        return out;
      }
      case Regex::Kind::kSequence: {
        Places out = from;
        for (const uint32_t child : node.children) out = Step(child, out);
        return out;
      }
      case Regex::Kind::kChoice: {
        Places out(from.size(), false);
        for (const uint32_t child : node.children) Merge(out, Step(child, from));
        return out;
      }
      case Regex::Kind::kRepeat:
        return Repeated(node, from);
    }
    return from;
  }

  static bool Any(const Places& places) {
    return std::find(places.begin(), places.end(), true) != places.end();
  }
  bool spent() const { return steps_ > kMaxMatchSteps || (budget_ != nullptr && budget_->spent()); }

 private:
  static void Merge(Places& into, const Places& more) {
    for (size_t i = 0; i < into.size(); ++i) into[i] = into[i] || more[i];
  }

  Places Repeated(const Regex::Node& node, const Places& from) {
    Places now = from;
    for (int64_t i = 0; i < node.min && Any(now); ++i) {
      Places next = Step(node.children[0], now);
      if (next == now) break;  // and will stay so
      now = std::move(next);
    }
    Places out = now;
    for (int64_t i = node.min; node.max == GrammarBuilder::kUnbounded || i < node.max; ++i) {
      now = Step(node.children[0], now);
      Places merged = out;
      Merge(merged, now);
      if (merged == out) break;
      out = std::move(merged);
    }
    return out;
  }

  const Regex& regex_;
  std::u32string text_;
  bool widest_;
  CompileBudget* budget_;
  int64_t steps_ = 0;
};

Result<Regex> Regex::Parse(std::string_view pattern) {
  Regex out;
  BT_RETURN_IF_ERROR(RegexParser::Parse(pattern, out));
  return out;
}

Expr Regex::Add(GrammarBuilder& builder, const RegexOptions& options) const {
  RegexEmitter emitter(*this, builder, options);
  const Expr exact = emitter.Whole();
  // [a-z][a-z0-9]{0,62} is a loop of at most 63 characters, and not 63 places.
  const auto length = emitter.CountableLength();
  if (!length) return exact;
  const Expr loose = RegexEmitter(*this, builder, options, true).Whole();
  return builder.AsLength(exact, loose, emitter.Character(), *length);
}

Result<bool> Regex::Matches(std::string_view text,
                            const RegexOptions& options,
                            CompileBudget* budget) const {
  std::u32string codes;
  for (size_t at = 0; at < text.size();) {
    char32_t code = 0;
    const size_t length = Utf8Decode(text.substr(at), code);
    if (length == 0) return InvalidArgument("the text is not valid UTF-8");
    codes.push_back(code);
    at += length;
  }
  const size_t length = codes.size();
  RegexSimulation simulation(*this, std::move(codes), options.widest, budget);
  RegexSimulation::Places from(length + 1, !options.anchored);
  from[0] = true;
  const RegexSimulation::Places ends = simulation.Step(root_, from);
  if (simulation.spent()) {
    return Status(Code::kResourceExhausted, "matching the regular expression takes too long");
  }
  return options.anchored ? bool{ends.back()} : RegexSimulation::Any(ends);
}

void Regex::Lengths(uint32_t index, int64_t& min, int64_t& max) const {
  // Children come before their parents.
  struct Range {
    int64_t min = 0, max = 0;
  };
  constexpr int64_t kEndless = int64_t{1} << 40;
  std::vector<Range> ranges(index + 1);
  for (uint32_t i = 0; i <= index; ++i) {
    const Node& node = nodes_[i];
    Range& range = ranges[i];
    if (node.kind == Kind::kClass) range = {1, 1};
    for (size_t j = 0; j < node.children.size(); ++j) {
      const Range& child = ranges[node.children[j]];
      if (node.kind == Kind::kChoice) {
        range.min = j == 0 ? child.min : std::min(range.min, child.min);
        range.max = std::max(range.max, child.max);
      } else if (node.kind == Kind::kSequence) {
        range = {range.min + child.min, std::min(range.max + child.max, kEndless)};
      } else if (child.max > 0) {
        const bool endless = node.max == GrammarBuilder::kUnbounded || child.max == kEndless;
        range = {child.min * node.min,
                 endless ? kEndless : std::min(child.max * node.max, kEndless)};
      }
    }
    range.min = std::min(range.min, kEndless);
  }
  min = ranges[index].min;
  max = ranges[index].max == kEndless ? GrammarBuilder::kUnbounded : ranges[index].max;
}

std::optional<Expr> Regex::AddOfLength(GrammarBuilder& builder,
                                       const RegexOptions& options,
                                       int64_t min,
                                       int64_t max) const {
  return RegexEmitter(*this, builder, options).OfLength(min, max);
}

Result<Expr> AddRegex(GrammarBuilder& builder,
                      std::string_view pattern,
                      const RegexOptions& options) {
  BT_ASSIGN_OR_RETURN(const Regex regex, Regex::Parse(pattern));
  return regex.Add(builder, options);
}

}  // namespace baltoro
