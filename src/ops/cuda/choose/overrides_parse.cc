// The text of a table of overrides. Errors name the file, the line or entry and what would be
// right.

#include <algorithm>
#include <charconv>
#include <utility>

#include "ops/cuda/choose/attention_half.h"
#include "ops/cuda/choose/experts.h"
#include "ops/cuda/choose/linear.h"
#include "ops/cuda/choose/overrides.h"

namespace baltoro::cuda {
namespace {

constexpr OverriddenOperation kOperations[] = {OverriddenOperation::kLinear,
                                               OverriddenOperation::kExperts,
                                               OverriddenOperation::kAttentionHalf};

struct NamedKernel {
  uint8_t kernel;
  std::string name;
};

template <typename Kernel>
std::vector<NamedKernel> KernelsFrom(Kernel first, Kernel last) {
  std::vector<NamedKernel> kernels;
  for (auto at = static_cast<uint8_t>(first); at <= static_cast<uint8_t>(last); ++at) {
    kernels.push_back({at, NameOf(static_cast<Kernel>(at))});
  }
  return kernels;
}

// What can be named: kernels that stand for an operation by themselves.
std::vector<NamedKernel> KernelsOf(OverriddenOperation operation) {
  switch (operation) {
    case OverriddenOperation::kLinear: {
      std::vector<NamedKernel> kernels =
          KernelsFrom(LinearKernel::kBf16Rows16, LinearKernel::kPlain);
      // Which the router's product has alone.
      std::erase_if(kernels, [](const NamedKernel& one) {
        return one.kernel == static_cast<uint8_t>(LinearKernel::kRouterRows16);
      });
      return kernels;
    }
    case OverriddenOperation::kExperts:
      return KernelsFrom(ExpertsKernel::kInt4OneLaunch1, ExpertsKernel::kGroupedProducts);
    case OverriddenOperation::kAttentionHalf:
      return {{static_cast<uint8_t>(AttentionHalfWay::kApart),
               Text(AttentionHalfPlan{.kernel = AttentionHalfWay::kApart})}};
  }
  return {};
}

std::vector<OverrideFact> MayName(OverriddenOperation operation) {
  using enum OverrideFact;
  switch (operation) {
    case OverriddenOperation::kLinear:
      return {kN, kK, kRows};
    case OverriddenOperation::kExperts:
      return {kSlots, kHidden, kIntermediate, kTopK, kTokens};
    case OverriddenOperation::kAttentionHalf:
      return {kTokens};
  }
  return {};
}

// A word of the file as an error may print it.
std::string Quoted(std::string_view word) {
  constexpr size_t kMost = 60;
  std::string text = "'";
  for (const char c : word.substr(0, kMost)) text += c > ' ' && c <= '~' ? c : '?';
  return text + (word.size() > kMost ? "...'" : "'");
}

template <typename List, typename Name>
std::string Listed(const List& list, const Name& name) {
  std::string text;
  for (const auto& one : list) text.append(text.empty() ? "" : ", ").append(name(one));
  return text;
}

std::string_view NextWord(std::string_view& line) {
  constexpr char kSpaces[] = " \t\r";
  const size_t begin = line.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return line = {};
  const size_t end = std::min(line.find_first_of(kSpaces, begin), line.size());
  const std::string_view word = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return word;
}

bool ReadNumber(std::string_view text, int64_t& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size() && to >= 0;
}

// "N" or "FIRST..LAST".
Status ReadRange(std::string_view text, std::string_view key, Override::Range& to) {
  const size_t dots = text.find("..");
  const bool one = dots == std::string_view::npos;
  if (!ReadNumber(text.substr(0, dots), to.least) ||
      !ReadNumber(one ? text : text.substr(dots + 2), to.most)) {
    return InvalidArgument(std::string(key) + " is " + Quoted(text) +
                           ": write a number, or FIRST..LAST");
  }
  if (to.least > to.most) {
    return InvalidArgument(std::string(key) + " is " + Quoted(text) +
                           ": write the smaller number first");
  }
  return {};
}

// One entry, of which `line` has what follows the operation.
class EntryReader {
 public:
  explicit EntryReader(OverriddenOperation operation) { entry_.operation = operation; }

  Result<Override> Read(std::string_view line) {
    for (std::string_view word = NextWord(line); !word.empty(); word = NextWord(line)) {
      const size_t equals = word.find('=');
      if (equals == std::string_view::npos) {
        return InvalidArgument(Quoted(word) + " is not KEY=VALUE; " + Keys());
      }
      const std::string_view key = word.substr(0, equals);
      for (const std::string& known : seen_) {
        if (known == key) return InvalidArgument(known + " is given twice");
      }
      BT_RETURN_IF_ERROR(ReadOne(key, word.substr(equals + 1)));
      seen_.emplace_back(key);
    }
    if (entry_.name.empty()) return InvalidArgument("kernel=NAME is missing; " + Kernels());
    return std::move(entry_);
  }

 private:
  Status ReadOne(std::string_view key, std::string_view value) {
    if (key == "kernel") {
      for (NamedKernel& one : KernelsOf(entry_.operation)) {
        if (one.name != value) continue;
        entry_.kernel = one.kernel;
        entry_.name = std::move(one.name);
        return {};
      }
      return InvalidArgument("no kernel " + Quoted(value) + "; " + Kernels());
    }
    if (key == "form") {
      entry_.form = FormOfName(value);
      if (entry_.form) return {};
      return InvalidArgument("no form " + Quoted(value) +
                             "; forms are bf16, f32, fp8, fp8_w8a8, int4_group, int8, int4 and "
                             "int8_static");
    }
    for (const OverrideFact fact : MayName(entry_.operation)) {
      if (key == NameOf(fact)) {
        return ReadRange(value, key, entry_.ranges[static_cast<size_t>(fact)]);
      }
    }
    return InvalidArgument("unknown key " + Quoted(key) + "; " + Keys());
  }

  std::string Keys() const {
    return std::string(NameOf(entry_.operation)) + " takes form, " +
           Listed(MayName(entry_.operation), [](OverrideFact fact) { return NameOf(fact); }) +
           " and kernel";
  }
  std::string Kernels() const {
    return std::string("kernels of ") + NameOf(entry_.operation) + ": " +
           Listed(KernelsOf(entry_.operation), [](const NamedKernel& one) { return one.name; });
  }

  Override entry_;
  std::vector<std::string> seen_;
};

Result<Override> ReadEntry(std::string_view line) {
  const std::string_view first = NextWord(line);
  for (const OverriddenOperation operation : kOperations) {
    if (first == NameOf(operation)) return EntryReader(operation).Read(line);
  }
  return InvalidArgument("no operation " + Quoted(first) + "; operations are " +
                         Listed(kOperations, [](OverriddenOperation one) { return NameOf(one); }));
}

}  // namespace

Result<std::unique_ptr<Overrides>> Overrides::Parse(std::string_view text,
                                                    const std::string& before_number,
                                                    Tell tell) {
  std::vector<Override> entries;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    std::string_view words = line;
    if (NextWord(words).empty()) continue;
    const std::string place = before_number + std::to_string(number);
    if (entries.size() == kOverridesMax) {
      return InvalidArgument(place + ": more than " + std::to_string(kOverridesMax) +
                             " entries; join some by ranges");
    }
    Result<Override> entry = ReadEntry(line);
    if (!entry.ok()) return InvalidArgument(place + ": " + entry.status().message());
    entries.push_back(std::move(entry).value());
    entries.back().place = place;
    entries.back().why = "by the table of overrides, " + place;
  }
  return std::make_unique<Overrides>(std::move(entries), std::move(tell));
}

}  // namespace baltoro::cuda
