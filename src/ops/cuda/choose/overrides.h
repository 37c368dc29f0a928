#pragma once

// A table of overrides: which kernel computes a question, whatever would be chosen. An engineer who
// tries a kernel writes it, or a tuner; docs/kernels/README.md tells of its use. One entry a line,
// `#` begins a comment:
//
//   linear form=fp8_w8a8 n=2112 k=7168 rows=65..128 kernel=fp8_tiles
//   experts form=int4_group hidden=7168 intermediate=256 tokens=33..64 kernel=int4_streaming
//   attention_half form=bf16 tokens=1..8 kernel=apart
//
// What an entry does not say may be anything; the first entry that fits a question is taken. The
// table is a value that choices are given with the card; launch/kernel_table.h reads the file.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ops/cuda/choose/facts.h"

namespace baltoro::cuda {

inline constexpr uint64_t kOverridesBytesMax = 64 << 10;  // of the file
inline constexpr size_t kOverridesMax = 64;               // entries: each question looks at all

enum class OverriddenOperation : uint8_t { kLinear, kExperts, kAttentionHalf };

// What an entry may say of a question, beside the form of its weights.
enum class OverrideFact : uint8_t {
  kRows,
  kTokens,
  kN,
  kK,
  kSlots,
  kHidden,
  kIntermediate,
  kTopK,
};
inline constexpr size_t kOverrideFacts = 8;

struct OverrideQuestion {
  OverriddenOperation operation = OverriddenOperation::kLinear;
  WeightForm form = WeightForm::kBf16;
  bool quantise_input = false;
  std::array<int64_t, kOverrideFacts> facts = {};

  int64_t& operator[](OverrideFact fact) { return facts[static_cast<size_t>(fact)]; }
};

struct Override {
  struct Form {
    WeightForm form;
    bool quantise_input;
  };
  struct Range {
    int64_t least = 0, most = INT64_MAX;
  };

  OverriddenOperation operation = OverriddenOperation::kLinear;
  std::optional<Form> form;
  std::array<Range, kOverrideFacts> ranges = {};
  uint8_t kernel = 0;  // a LinearKernel, ExpertsKernel or AttentionHalfWay
  std::string name;    // of that kernel
  std::string place;   // "FILE:LINE", or "FILE: entry NUMBER" of a tuned table
  std::string why;     // of a plan that follows it

  bool Fits(const OverrideQuestion& question) const;
  // Whether a question fits both.
  bool Overlaps(const Override& other) const;
};

// Who is told what a table could say: a question as an entry would begin, what is chosen for it by
// itself, and the other kernels that take it.
using ChoiceListener = std::function<void(const std::string& question,
                                          const std::string& built_in,
                                          const std::vector<std::string>& others)>;

// Any thread may ask. Plans that follow an entry point into the table, which must live as long.
class Overrides {
 public:
  // `before_number` stands before a line's number in errors and reasons: "FILE:". `tell` is given a
  // line for each entry and reason for which a kernel does not take a question that the entry fits.
  using Tell = std::function<void(const std::string& line)>;
  static Result<std::unique_ptr<Overrides>> Parse(std::string_view text,
                                                  const std::string& before_number,
                                                  Tell tell);

  size_t size() const { return entries_.size(); }
  std::span<const Override> entries() const { return entries_; }
  // Null: none fits.
  const Override* Find(const OverrideQuestion& question) const;
  // Takes the entries of `other` and who is told. Entries until then stay for the plans that point
  // to them. Nobody asks meanwhile, of this as of Listen.
  void Replace(Overrides&& other);
  // Adds the entries of `other` behind these, before any was asked for.
  void Append(Overrides&& other);
  // Who measures; empty: nobody any more.
  void Listen(ChoiceListener listener) { listener_ = std::move(listener); }
  const ChoiceListener& listener() const { return listener_; }
  // `entry`, of this table, is not followed: told once for each reason, which is a literal.
  void Refuse(const Override& entry, const OverrideQuestion& question, const char* reason) const;

 private:
  struct Told;

 public:
  Overrides(std::vector<Override> entries, Tell tell);
  ~Overrides();

 private:
  std::vector<Override> entries_;
  std::vector<std::vector<Override>> replaced_;
  ChoiceListener listener_;
  Tell tell_;
  std::unique_ptr<Told> told_;
};

const char* NameOf(OverriddenOperation operation);
const char* NameOf(OverrideFact fact);
// "linear form=bf16 rows=16 n=2112 k=7168", as an entry would say it.
std::string Text(const OverrideQuestion& question);
// Null: no such form is named.
const char* FormName(WeightForm form, bool quantise_input);
std::optional<Override::Form> FormOfName(std::string_view name);

}  // namespace baltoro::cuda
