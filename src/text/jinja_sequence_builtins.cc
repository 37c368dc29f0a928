// Filters on sequences and values, and the methods of list, dict and loop.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/python_text.h"

namespace baltoro::jinja {
namespace {

// "a.b.0" as the filters' `attribute` takes it.
Result<Value> AttributePath(Interpreter& in, Value object, const Value& path) {
  if (!path.is_string()) return in.GetItem(object, path);
  std::string_view rest = path.text->bytes();
  for (;;) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    Value key = Value::Int(index);
    if (read.ec != std::errc() || read.ptr != part.data() + part.size()) {
      BT_ASSIGN_OR_RETURN(key, in.NewString(Text(std::string(part), false)));
    }
    BT_ASSIGN_OR_RETURN(object, in.GetItem(object, key));
    if (dot == std::string_view::npos) return object;
    rest.remove_prefix(dot + 1);
  }
}

// What values are ordered or told apart by: an attribute if one is named, letters without case
// unless asked.
Result<Value> SortKey(Interpreter& in,
                      const Value& item,
                      const std::optional<Value>& attribute,
                      bool case_sensitive) {
  Value key = item;
  if (attribute && !attribute->is_none()) {
    BT_ASSIGN_OR_RETURN(key, AttributePath(in, item, *attribute));
  }
  if (case_sensitive || !key.is_string()) return key;
  BT_RETURN_IF_ERROR(in.ChargeBytes(key.text->size() * 4));
  return in.NewString(WithCase(*key.text, LetterCase::kLower));
}

using Keyed = std::pair<Value, Value>;  // key, item

Result<std::vector<Keyed>> WithKeys(Interpreter& in,
                                    const std::vector<Value>& items,
                                    const std::optional<Value>& attribute,
                                    bool case_sensitive) {
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    BT_RETURN_IF_ERROR(in.Charge(1));
    BT_ASSIGN_OR_RETURN(const Value key, SortKey(in, item, attribute, case_sensitive));
    keyed.emplace_back(key, item);
  }
  return keyed;
}

// Stable. A merge sort of our own because the order may fail, which std::sort cannot stop for.
Status SortKeyed(Interpreter& in, std::vector<Keyed>& keyed, bool reverse) {
  std::vector<Keyed> merged(keyed.size());
  for (size_t width = 1; width < keyed.size(); width *= 2) {
    for (size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, keyed.size());
      const size_t end = std::min(begin + 2 * width, keyed.size());
      size_t left = begin, right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left == middle;
        if (!take_right && right < end) {
          BT_ASSIGN_OR_RETURN(const int order,
                              Order(keyed[right].first, keyed[left].first, in.steps_left()));
          take_right = reverse ? order > 0 : order < 0;
        }
        merged[out] = keyed[take_right ? right++ : left++];
      }
    }
    keyed.swap(merged);
  }
  return {};
}

Value ItemsOf(Interpreter& in, const std::vector<Keyed>& keyed) {
  std::vector<Value> items;
  for (const Keyed& pair : keyed) items.push_back(pair.second);
  return in.NewList(std::move(items));
}

Result<Value> Sort(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[3];
  BT_RETURN_IF_ERROR(Bind(args, {"reverse", "case_sensitive", "attribute"}, a));
  BT_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Items(self));
  BT_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                      WithKeys(in, items, a[2], BoolArgument(a[1], false)));
  BT_RETURN_IF_ERROR(SortKeyed(in, keyed, BoolArgument(a[0], false)));
  return ItemsOf(in, keyed);
}

Result<Value> PairList(Interpreter& in, const Dict& dict) {
  std::vector<Value> pairs;
  BT_RETURN_IF_ERROR(in.Charge(static_cast<int64_t>(dict.entries.size())));
  for (const auto& [key, value] : dict.entries) {
    pairs.push_back(in.NewList({key, value}, ListKind::kTuple));
  }
  return in.NewList(std::move(pairs));
}

Result<Value> DictSort(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[3];
  BT_RETURN_IF_ERROR(Bind(args, {"case_sensitive", "by", "reverse"}, a));
  if (!self.is_dict()) return InvalidArgument("dictsort needs a dict");
  int64_t by = 0;
  if (a[1]) {
    BT_ASSIGN_OR_RETURN(const Text* name, TextArgument(a[1], "by"));
    if (name->bytes() != "key" && name->bytes() != "value") {
      return InvalidArgument("dictsort sorts by 'key' or 'value'");
    }
    by = name->bytes() == "value";
  }
  BT_ASSIGN_OR_RETURN(const Value pairs, PairList(in, *self.dict));
  BT_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                      WithKeys(in, pairs.list->items, Value::Int(by), BoolArgument(a[0], false)));
  BT_RETURN_IF_ERROR(SortKeyed(in, keyed, BoolArgument(a[2], false)));
  return ItemsOf(in, keyed);
}

Result<Value> Unique(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"case_sensitive", "attribute"}, a));
  BT_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Items(self));
  BT_ASSIGN_OR_RETURN(const std::vector<Keyed> keyed,
                      WithKeys(in, items, a[1], BoolArgument(a[0], false)));
  std::vector<Keyed> chosen;
  for (const Keyed& candidate : keyed) {
    bool seen = false;
    for (const Keyed& earlier : chosen) {
      BT_ASSIGN_OR_RETURN(seen, Equal(earlier.first, candidate.first, in.steps_left()));
      if (seen) break;
    }
    if (!seen) chosen.push_back(candidate);
  }
  return ItemsOf(in, chosen);
}

template <int kSign>
Result<Value> Extreme(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"case_sensitive", "attribute"}, a));
  BT_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Items(self));
  BT_ASSIGN_OR_RETURN(const std::vector<Keyed> keyed,
                      WithKeys(in, items, a[1], BoolArgument(a[0], false)));
  if (keyed.empty()) return Value::Undefined();
  const Keyed* best = &keyed[0];
  for (const Keyed& candidate : keyed) {
    BT_ASSIGN_OR_RETURN(const int order, Order(candidate.first, best->first, in.steps_left()));
    if (order * kSign > 0) best = &candidate;
  }
  return best->second;
}

Result<Value> Sum(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"attribute", "start"}, a));
  BT_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Items(self));
  Value total = a[1].value_or(Value::Int(0));
  for (Value item : items) {
    BT_RETURN_IF_ERROR(in.Charge(1));
    if (a[0] && !a[0]->is_none()) {
      BT_ASSIGN_OR_RETURN(item, AttributePath(in, item, *a[0]));
    }
    BT_ASSIGN_OR_RETURN(total, in.Arithmetic(Op::kAdd, total, item));
  }
  return total;
}

Result<Value> Length(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  size_t count = 0;
  switch (self.kind) {
    case ValueKind::kUndefined:
      break;
    case ValueKind::kString:
      BT_RETURN_IF_ERROR(in.ChargeBytes(self.text->size()));
      count = CharacterCount(self.text->bytes());
      break;
    case ValueKind::kList:
      count = self.list->items.size();
      break;
    case ValueKind::kDict:
      count = self.dict->entries.size();
      break;
    default:
      return InvalidArgument(fmt::format("a '{}' has no length", TypeName(self)));
  }
  return Value::Int(static_cast<int64_t>(count));
}

Result<Value> Default(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"default_value", "boolean"}, a));
  if (!self.is_undefined() && !(BoolArgument(a[1], false) && !IsTruthy(self))) return self;
  if (a[0]) return *a[0];
  return in.NewString({});
}

template <bool kLast>
Result<Value> End(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  if (self.is_list() || self.is_string()) return in.GetItem(self, Value::Int(kLast ? -1 : 0));
  BT_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Items(self));
  if (items.empty()) return Value::Undefined();
  return kLast ? items.back() : items.front();
}

Result<Value> ToList(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  BT_ASSIGN_OR_RETURN(std::vector<Value> items, in.Items(self));
  return in.NewList(std::move(items));
}

Result<Value> Reverse(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  BT_ASSIGN_OR_RETURN(std::vector<Value> items, in.Items(self));
  std::reverse(items.begin(), items.end());
  if (!self.is_string()) return in.NewList(std::move(items));
  Text text;
  for (const Value& item : items) text.Append(*item.text);
  return in.NewString(std::move(text));
}

Result<Value> ItemsFilter(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  if (self.is_undefined()) return in.NewList({});
  if (!self.is_dict()) return InvalidArgument("Can only get item pairs from a mapping.");
  return PairList(in, *self.dict);
}

Result<Value> Absolute(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_number()) return InvalidArgument("abs needs a number");
  if (!self.is_integral()) return Value::Float(std::fabs(self.real));
  if (self.AsInt() >= 0) return Value::Int(self.AsInt());
  return in.Arithmetic(Op::kSub, Value::Int(0), self);
}

Result<Value> Round(Interpreter&, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"precision", "method"}, a));
  BT_ASSIGN_OR_RETURN(const int64_t precision, IntArgument(a[0], "precision", 0));
  std::string method = "common";
  if (a[1]) {
    BT_ASSIGN_OR_RETURN(const Text* name, TextArgument(a[1], "method"));
    method = name->bytes();
  }
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_number() || precision < 0 || precision > 15) {
    return InvalidArgument("round needs a number and a precision of 0 to 15");
  }
  const double value = self.AsDouble();
  if (method == "common") {
    if (self.is_integral()) return Value::Int(self.AsInt());
    // Python rounds the exact decimal value, half to even: as printf does.
    const std::string text = fmt::format("{:.{}f}", value, precision);
    double rounded = 0;
    std::from_chars(text.data(), text.data() + text.size(), rounded);
    return Value::Float(rounded);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value::Float(std::ceil(value * scale) / scale);
  if (method == "floor") return Value::Float(std::floor(value * scale) / scale);
  return InvalidArgument("round's method is common, ceil or floor");
}

// The arguments of map, select and their like after the first `used`, for the function they name.
CallArgs Remaining(const CallArgs& args, size_t used) {
  CallArgs rest;
  if (args.positional.size() > used) {
    rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(used),
                           args.positional.end());
  }
  rest.named = args.named;
  return rest;
}

Result<Value> Map(Interpreter& in, Value self, const CallArgs& args) {
  BT_ASSIGN_OR_RETURN(std::vector<Value> items, in.Items(self));
  if (args.positional.empty()) {
    std::optional<Value> a[2];
    BT_RETURN_IF_ERROR(Bind(args, {"attribute", "default"}, a));
    if (!a[0]) return InvalidArgument("map needs a filter or an attribute");
    for (Value& item : items) {
      BT_RETURN_IF_ERROR(in.Charge(1));
      BT_ASSIGN_OR_RETURN(item, AttributePath(in, item, *a[0]));
      if (item.is_undefined() && a[1]) item = *a[1];
    }
    return in.NewList(std::move(items));
  }
  BT_ASSIGN_OR_RETURN(const Text* name, TextArgument(args.positional[0], "filter"));
  const Builtin filter = FindFilter(name->bytes());
  if (filter == nullptr) return InvalidArgument(fmt::format("no filter '{}'", name->bytes()));
  const CallArgs rest = Remaining(args, 1);
  for (Value& item : items) {
    BT_RETURN_IF_ERROR(in.Charge(1));
    BT_ASSIGN_OR_RETURN(item, filter(in, item, rest));
  }
  return in.NewList(std::move(items));
}

template <bool kKeep, bool kAttribute>
Result<Value> Select(Interpreter& in, Value self, const CallArgs& args) {
  BT_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Items(self));
  constexpr size_t kFirst = kAttribute ? 1 : 0;
  if (args.positional.size() < kFirst) return InvalidArgument("needs an attribute");
  Builtin test = nullptr;
  if (args.positional.size() > kFirst) {
    BT_ASSIGN_OR_RETURN(const Text* name, TextArgument(args.positional[kFirst], "test"));
    test = FindTest(name->bytes());
    if (test == nullptr) return InvalidArgument(fmt::format("no test '{}'", name->bytes()));
  }
  const CallArgs rest = Remaining(args, kFirst + 1);
  std::vector<Value> chosen;
  for (const Value& item : items) {
    BT_RETURN_IF_ERROR(in.Charge(1));
    Value tested = item;
    if (kAttribute) {
      BT_ASSIGN_OR_RETURN(tested, AttributePath(in, item, args.positional[0]));
    }
    if (test != nullptr) {
      BT_ASSIGN_OR_RETURN(tested, test(in, tested, rest));
    }
    if (IsTruthy(tested) == kKeep) chosen.push_back(item);
  }
  return in.NewList(std::move(chosen));
}

constexpr NamedBuiltin kFilters[] = {
    {"abs", Absolute},
    {"count", Length},
    {"d", Default},
    {"default", Default},
    {"dictsort", DictSort},
    {"first", End<false>},
    {"items", ItemsFilter},
    {"last", End<true>},
    {"length", Length},
    {"list", ToList},
    {"map", Map},
    {"max", Extreme<1>},
    {"min", Extreme<-1>},
    {"reject", Select<false, false>},
    {"rejectattr", Select<false, true>},
    {"reverse", Reverse},
    {"round", Round},
    {"select", Select<true, false>},
    {"selectattr", Select<true, true>},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

// --- methods of list ---

Result<Value> Append(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"object"}, a));
  if (!a[0] || self.list->kind != ListKind::kList)
    return InvalidArgument("append needs a list and an object");
  BT_RETURN_IF_ERROR(in.Charge(1));
  self.list->items.push_back(*a[0]);
  return Value::None();
}

Result<Value> Extend(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"iterable"}, a));
  if (!a[0] || self.list->kind != ListKind::kList)
    return InvalidArgument("extend needs a list and an iterable");
  BT_ASSIGN_OR_RETURN(const std::vector<Value> more, in.Items(*a[0]));
  self.list->items.insert(self.list->items.end(), more.begin(), more.end());
  return Value::None();
}

Result<Value> Insert(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"index", "object"}, a));
  BT_ASSIGN_OR_RETURN(int64_t index, IntArgument(a[0], "index"));
  if (!a[1] || self.list->kind != ListKind::kList)
    return InvalidArgument("insert needs a list and an object");
  auto& items = self.list->items;
  const auto size = static_cast<int64_t>(items.size());
  BT_RETURN_IF_ERROR(in.Charge(1 + size / 16));
  if (index < 0) index = std::max(index, -size) + size;
  items.insert(items.begin() + std::min(index, size), *a[1]);
  return Value::None();
}

Result<Value> Pop(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"index"}, a));
  BT_ASSIGN_OR_RETURN(int64_t index, IntArgument(a[0], "index", -1));
  auto& items = self.list->items;
  const auto size = static_cast<int64_t>(items.size());
  BT_RETURN_IF_ERROR(in.Charge(1 + size / 16));
  if (index < 0) index += size;
  if (self.list->kind != ListKind::kList || index < 0 || index >= size) {
    return InvalidArgument("pop index out of range");
  }
  const Value taken = items[static_cast<size_t>(index)];
  items.erase(items.begin() + index);
  return taken;
}

Result<Value> IndexOf(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"value"}, a));
  if (!a[0]) return InvalidArgument("index needs a value");
  for (size_t i = 0; i < self.list->items.size(); ++i) {
    BT_ASSIGN_OR_RETURN(const bool same, Equal(self.list->items[i], *a[0], in.steps_left()));
    if (same) return Value::Int(static_cast<int64_t>(i));
  }
  return InvalidArgument("the value is not in the list");
}

Result<Value> CountItems(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"value"}, a));
  if (!a[0]) return InvalidArgument("count needs a value");
  int64_t count = 0;
  for (const Value& item : self.list->items) {
    BT_ASSIGN_OR_RETURN(const bool same, Equal(item, *a[0], in.steps_left()));
    count += same;
  }
  return Value::Int(count);
}

Result<Value> CopyList(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  BT_ASSIGN_OR_RETURN(std::vector<Value> items, in.Items(self));
  return in.NewList(std::move(items));
}

Result<Value> ReverseList(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  if (self.list->kind != ListKind::kList)
    return InvalidArgument("a tuple cannot be reversed in place");
  BT_RETURN_IF_ERROR(in.Charge(static_cast<int64_t>(self.list->items.size() / 16)));
  std::reverse(self.list->items.begin(), self.list->items.end());
  return Value::None();
}

constexpr NamedBuiltin kListMethods[] = {
    {"append", Append}, {"copy", CopyList}, {"count", CountItems}, {"extend", Extend},
    {"index", IndexOf}, {"insert", Insert}, {"pop", Pop},          {"reverse", ReverseList},
};

// --- methods of dict ---

Result<Value> Get(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"key", "default"}, a));
  if (!a[0]) return InvalidArgument("get needs a key");
  BT_RETURN_IF_ERROR(in.Charge(static_cast<int64_t>(self.dict->entries.size() / 4)));
  if (const Value* found = self.dict->Find(*a[0])) return *found;
  return a[1].value_or(Value::None());
}

Result<Value> Pairs(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  return PairList(in, *self.dict);
}

Result<Value> Keys(Interpreter& in, Value self, const CallArgs& args) {
  return ToList(in, self, args);
}

Result<Value> Values(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  BT_RETURN_IF_ERROR(in.Charge(static_cast<int64_t>(self.dict->entries.size() / 4)));
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict->entries) values.push_back(value);
  return in.NewList(std::move(values));
}

Result<Value> PopKey(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"key", "default"}, a));
  if (!a[0]) return InvalidArgument("pop needs a key");
  auto& entries = self.dict->entries;
  BT_RETURN_IF_ERROR(in.Charge(1 + static_cast<int64_t>(entries.size() / 4)));
  for (size_t i = 0; i < entries.size(); ++i) {
    BT_ASSIGN_OR_RETURN(const bool same, Equal(entries[i].first, *a[0], in.steps_left()));
    if (!same) continue;
    const Value taken = entries[i].second;
    entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(i));
    return taken;
  }
  if (!a[1]) return InvalidArgument("pop of a key that is not there");
  return *a[1];
}

Result<Value> SetDefault(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"key", "default"}, a));
  if (!a[0]) return InvalidArgument("setdefault needs a key");
  if (const Value* found = self.dict->Find(*a[0])) return *found;
  const Value value = a[1].value_or(Value::None());
  BT_RETURN_IF_ERROR(in.SetEntry(*self.dict, *a[0], value));
  return value;
}

Result<Value> Update(Interpreter& in, Value self, const CallArgs& args) {
  for (const Value& source : args.positional) {
    if (!source.is_dict()) return InvalidArgument("update takes a dict");
    const auto entries = source.dict->entries;  // a copy: it may be `self`
    for (const auto& [key, value] : entries) {
      BT_RETURN_IF_ERROR(in.SetEntry(*self.dict, key, value));
    }
  }
  for (const auto& [name, value] : args.named) {
    BT_ASSIGN_OR_RETURN(const Value key, in.NewString(Text(std::string(name), true)));
    BT_RETURN_IF_ERROR(in.SetEntry(*self.dict, key, value));
  }
  return Value::None();
}

Result<Value> CopyDict(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  BT_RETURN_IF_ERROR(in.Charge(static_cast<int64_t>(self.dict->entries.size() / 4)));
  const Value copy = in.NewDict();
  copy.dict->entries = self.dict->entries;
  return copy;
}

constexpr NamedBuiltin kDictMethods[] = {
    {"copy", CopyDict}, {"get", Get},       {"items", Pairs},
    {"keys", Keys},     {"pop", PopKey},    {"setdefault", SetDefault},
    {"update", Update}, {"values", Values},
};

// --- methods of loop ---

Result<Value> Cycle(Interpreter&, Value self, const CallArgs& args) {
  if (args.positional.empty()) return InvalidArgument("cycle needs values");
  return args.positional[self.loop->index % args.positional.size()];
}

Result<Value> Changed(Interpreter& in, Value self, const CallArgs& args) {
  std::vector<Value>& seen = self.loop->seen;
  bool same = self.loop->changed_called && seen.size() == args.positional.size();
  for (size_t i = 0; same && i < seen.size(); ++i) {
    BT_ASSIGN_OR_RETURN(same, Equal(seen[i], args.positional[i], in.steps_left()));
  }
  self.loop->changed_called = true;
  seen = args.positional;
  return Value::Bool(!same);
}

constexpr NamedBuiltin kLoopMethods[] = {{"changed", Changed}, {"cycle", Cycle}};

}  // namespace

std::span<const NamedBuiltin> SequenceFilters() {
  return kFilters;
}
std::span<const NamedBuiltin> ListMethods() {
  return kListMethods;
}
std::span<const NamedBuiltin> DictMethods() {
  return kDictMethods;
}
std::span<const NamedBuiltin> LoopMethods() {
  return kLoopMethods;
}

}  // namespace baltoro::jinja
