#include "ops/cuda/choose/overrides.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

namespace baltoro::cuda {
namespace {

struct NamedForm {
  const char* name;
  WeightForm form;
  bool quantise_input = false;
};

// As the questions of the launch table call them.
constexpr NamedForm kForms[] = {
    {"bf16", WeightForm::kBf16},
    {"f32", WeightForm::kF32},
    {"fp8", WeightForm::kFp8Block},
    {"fp8_w8a8", WeightForm::kFp8Block, true},
    {"int4_group", WeightForm::kInt4Group},
    {"int8", WeightForm::kInt8},
    {"int4", WeightForm::kInt4},
    {"int8_static", WeightForm::kInt8Static},
};

}  // namespace

// Reasons that were told, of entries by their place.
struct Overrides::Told {
  std::mutex mutex;
  std::vector<std::pair<const Override*, const char*>> list;
};

Overrides::Overrides(std::vector<Override> entries, Tell tell)
    : entries_(std::move(entries)), tell_(std::move(tell)), told_(std::make_unique<Told>()) {}
Overrides::~Overrides() = default;

void Overrides::Replace(Overrides&& other) {
  replaced_.push_back(std::move(entries_));
  entries_ = std::move(other.entries_);
  tell_ = std::move(other.tell_);
}

void Overrides::Append(Overrides&& other) {
  entries_.insert(entries_.end(), std::make_move_iterator(other.entries_.begin()),
                  std::make_move_iterator(other.entries_.end()));
}

bool Override::Overlaps(const Override& other) const {
  if (other.operation != operation) return false;
  if (form && other.form &&
      (form->form != other.form->form || form->quantise_input != other.form->quantise_input)) {
    return false;
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (other.ranges[i].most < ranges[i].least || other.ranges[i].least > ranges[i].most) {
      return false;
    }
  }
  return true;
}

bool Override::Fits(const OverrideQuestion& question) const {
  if (question.operation != operation) return false;
  if (form && (form->form != question.form || form->quantise_input != question.quantise_input)) {
    return false;
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (question.facts[i] < ranges[i].least || question.facts[i] > ranges[i].most) return false;
  }
  return true;
}

const Override* Overrides::Find(const OverrideQuestion& question) const {
  for (const Override& entry : entries_) {
    if (entry.Fits(question)) return &entry;
  }
  return nullptr;
}

void Overrides::Refuse(const Override& entry,
                       const OverrideQuestion& question,
                       const char* reason) const {
  {
    const std::lock_guard lock(told_->mutex);
    const std::pair<const Override*, const char*> one(&entry, reason);
    if (std::find(told_->list.begin(), told_->list.end(), one) != told_->list.end()) return;
    told_->list.push_back(one);
  }
  if (tell_) {
    tell_(entry.place + ": " + entry.name + " does not take " + Text(question) + ": " + reason +
          "; what the engine chooses is used instead");
  }
}

const char* NameOf(OverriddenOperation operation) {
  switch (operation) {
    case OverriddenOperation::kLinear:
      return "linear";
    case OverriddenOperation::kExperts:
      return "experts";
    case OverriddenOperation::kAttentionHalf:
      return "attention_half";
  }
  return "";
}

const char* NameOf(OverrideFact fact) {
  switch (fact) {
    case OverrideFact::kRows:
      return "rows";
    case OverrideFact::kTokens:
      return "tokens";
    case OverrideFact::kN:
      return "n";
    case OverrideFact::kK:
      return "k";
    case OverrideFact::kSlots:
      return "slots";
    case OverrideFact::kHidden:
      return "hidden";
    case OverrideFact::kIntermediate:
      return "intermediate";
    case OverrideFact::kTopK:
      return "top_k";
  }
  return "";
}

const char* FormName(WeightForm form, bool quantise_input) {
  for (const NamedForm& named : kForms) {
    if (named.form == form && named.quantise_input == quantise_input) return named.name;
  }
  return nullptr;
}

std::optional<Override::Form> FormOfName(std::string_view name) {
  for (const NamedForm& named : kForms) {
    if (name == named.name) return Override::Form{named.form, named.quantise_input};
  }
  return std::nullopt;
}

std::string Text(const OverrideQuestion& question) {
  std::string text = NameOf(question.operation);
  if (const char* const form = FormName(question.form, question.quantise_input)) {
    text.append(" form=").append(form);
  }
  for (size_t i = 0; i < kOverrideFacts; ++i) {
    if (question.facts[i] == 0) continue;
    text.append(" ").append(NameOf(static_cast<OverrideFact>(i)));
    text.append("=").append(std::to_string(question.facts[i]));
  }
  return text;
}

}  // namespace baltoro::cuda
