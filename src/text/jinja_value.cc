#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>

namespace baltoro::jinja {

void Text::Append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_trusted_ = trusted;
  } else if ((first_trusted_ ^ (flips_.size() % 2 == 1)) != trusted) {
    flips_.push_back(bytes_.size());
  }
  bytes_.append(bytes);
}

void Text::Append(const Text& other, size_t begin, size_t end) {
  other.ForEachRun(begin, end,
                   [&](std::string_view bytes, bool trusted) { Append(bytes, trusted); });
}

Text Text::Substring(size_t begin, size_t end) const {
  Text part;
  part.Append(*this, begin, end);
  return part;
}

bool Text::TrustedAt(size_t offset) const {
  const auto flips = std::upper_bound(flips_.begin(), flips_.end(), offset) - flips_.begin();
  return first_trusted_ ^ (flips % 2 == 1);
}

Value Value::Undefined(const std::string* name) {
  Value value;
  value.missing = name;
  return value;
}

Value Value::None() {
  Value value;
  value.kind = ValueKind::kNone;
  return value;
}

Value Value::Bool(bool boolean) {
  Value value;
  value.kind = ValueKind::kBool;
  value.boolean = boolean;
  return value;
}

Value Value::Int(int64_t integer) {
  Value value;
  value.kind = ValueKind::kInt;
  value.integer = integer;
  return value;
}

Value Value::Float(double real) {
  Value value;
  value.kind = ValueKind::kFloat;
  value.real = real;
  return value;
}

Value Value::String(const Text* text) {
  Value value;
  value.kind = ValueKind::kString;
  value.text = text;
  return value;
}

Value* Dict::Find(std::string_view key) {
  for (auto& [name, value] : entries) {
    if (name.is_string() && name.text->bytes() == key) return &value;
  }
  return nullptr;
}

Value* Dict::Find(const Value& key) {
  if (key.is_string()) return Find(key.text->bytes());
  if (!key.is_number() && !key.is_none()) return nullptr;
  int64_t steps = 1'000'000'000;  // scalars only: each comparison is one step
  for (auto& [name, value] : entries) {
    if (name.is_string()) continue;
    const Result<bool> equal = Equal(name, key, steps);
    if (equal.ok() && equal.value()) return &value;
  }
  return nullptr;
}

bool IsTruthy(const Value& value) {
  switch (value.kind) {
    case ValueKind::kUndefined:
    case ValueKind::kNone:
      return false;
    case ValueKind::kBool:
      return value.boolean;
    case ValueKind::kInt:
      return value.integer != 0;
    case ValueKind::kFloat:
      return value.real != 0;
    case ValueKind::kString:
      return !value.text->empty();
    case ValueKind::kList:
      return !value.list->items.empty();
    case ValueKind::kDict:
      return !value.dict->entries.empty();
    default:
      return true;
  }
}

std::string_view TypeName(const Value& value) {
  switch (value.kind) {
    case ValueKind::kUndefined:
      return "Undefined";
    case ValueKind::kNone:
      return "NoneType";
    case ValueKind::kBool:
      return "bool";
    case ValueKind::kInt:
      return "int";
    case ValueKind::kFloat:
      return "float";
    case ValueKind::kString:
      return "str";
    case ValueKind::kList:
      return value.list->kind == ListKind::kTuple   ? "tuple"
             : value.list->kind == ListKind::kRange ? "range"
                                                    : "list";
    case ValueKind::kDict:
      return "dict";
    case ValueKind::kNamespace:
      return "namespace";
    case ValueKind::kLoop:
      return "loop";
    default:
      return "function";
  }
}

namespace {

using Entry = std::pair<Value, Value>;

bool KeyIsLess(const Entry* a, const Entry* b) {
  return a->first.text->bytes() < b->first.text->bytes();
}

// The entries whose keys are strings, in the order of these.
std::vector<const Entry*> SortedByKey(const Dict& dict) {
  std::vector<const Entry*> out;
  out.reserve(dict.entries.size());
  for (const Entry& entry : dict.entries) {
    if (entry.first.is_string()) out.push_back(&entry);
  }
  std::sort(out.begin(), out.end(), KeyIsLess);
  return out;
}

// Without a search in the one for each key of the other: clients send dicts of any size. Other keys
// than strings are a template's own, and each search for one takes as many steps as it may look at.
Result<bool> EqualDicts(const Dict& a, Dict& b, int64_t& steps, int depth_left) {
  if (a.entries.size() != b.entries.size()) return false;
  steps -=
      static_cast<int64_t>(a.entries.size());  // for the sorting; Equal looks whether they last
  const std::vector<const Entry*> mine = SortedByKey(a), others = SortedByKey(b);
  if (mine.size() != others.size()) return false;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (KeyIsLess(mine[i], others[i]) || KeyIsLess(others[i], mine[i])) return false;
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    BT_ASSIGN_OR_RETURN(const bool same,
                        Equal(mine[i]->second, others[i]->second, steps, depth_left - 1));
    if (!same) return false;
  }
  for (const auto& [key, value] : a.entries) {
    if (key.is_string()) continue;
    steps -= static_cast<int64_t>(b.entries.size());
    const Value* other = b.Find(key);
    if (other == nullptr) return false;
    BT_ASSIGN_OR_RETURN(const bool same, Equal(value, *other, steps, depth_left - 1));
    if (!same) return false;
  }
  return true;
}

}  // namespace

Result<bool> Equal(const Value& a, const Value& b, int64_t& steps, int depth_left) {
  if (depth_left == 0 || --steps < 0) return InvalidArgument("values too large to compare");
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.AsInt() == b.AsInt();
    return a.AsDouble() == b.AsDouble();
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case ValueKind::kUndefined:
    case ValueKind::kNone:
      return true;
    case ValueKind::kString:
      return a.text->bytes() == b.text->bytes();
    case ValueKind::kList: {
      if (a.list->kind != b.list->kind || a.list->items.size() != b.list->items.size()) {
        return false;
      }
      for (size_t i = 0; i < a.list->items.size(); ++i) {
        BT_ASSIGN_OR_RETURN(const bool same,
                            Equal(a.list->items[i], b.list->items[i], steps, depth_left - 1));
        if (!same) return false;
      }
      return true;
    }
    case ValueKind::kDict:
      return EqualDicts(*a.dict, *b.dict, steps, depth_left);
    default:
      return a.list == b.list;  // identity
  }
}

Result<int> Order(const Value& a, const Value& b, int64_t& steps, int depth_left) {
  if (depth_left == 0 || --steps < 0) return InvalidArgument("values too large to compare");
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) {
      return a.AsInt() < b.AsInt() ? -1 : a.AsInt() > b.AsInt();
    }
    return a.AsDouble() < b.AsDouble() ? -1 : a.AsDouble() > b.AsDouble();
  }
  if (a.is_string() && b.is_string()) {
    const int order = a.text->bytes().compare(b.text->bytes());  // bytes order as code points do
    return order < 0 ? -1 : order > 0;
  }
  if (a.is_list() && b.is_list() && a.list->kind == b.list->kind &&
      a.list->kind != ListKind::kRange) {
    const size_t common = std::min(a.list->items.size(), b.list->items.size());
    for (size_t i = 0; i < common; ++i) {
      BT_ASSIGN_OR_RETURN(const bool same,
                          Equal(a.list->items[i], b.list->items[i], steps, depth_left - 1));
      if (!same) return Order(a.list->items[i], b.list->items[i], steps, depth_left - 1);
    }
    return static_cast<int>(a.list->items.size() > common) -
           static_cast<int>(b.list->items.size() > common);
  }
  return InvalidArgument("no order between '" + std::string(TypeName(a)) + "' and '" +
                         std::string(TypeName(b)) + "'");
}

}  // namespace baltoro::jinja
