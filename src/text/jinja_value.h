#pragma once

// Values of the chat-template interpreter. They are small and freely copied; what they point at
// (text, lists, dicts) lives in the interpreter's arena until the end of one render, or in the
// parsed template. One thread.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace baltoro::jinja {

// Text in which every byte remembers whether it was written in the template (trusted) or came from
// a value. Only trusted text may become special tokens.
class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)), first_trusted_(trusted) {}

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  void Append(std::string_view bytes, bool trusted);
  // Appends bytes [begin, end) of `other` with their trust.
  void Append(const Text& other, size_t begin, size_t end);
  void Append(const Text& other) { Append(other, 0, other.size()); }
  Text Substring(size_t begin, size_t end) const;
  bool TrustedAt(size_t offset) const;

  // Calls visit(bytes, trusted) for the maximal runs of [begin, end), in order.
  template <typename Visit>
  void ForEachRun(size_t begin, size_t end, Visit visit) const {
    const auto first = std::upper_bound(flips_.begin(), flips_.end(), begin);
    const auto before = static_cast<size_t>(first - flips_.begin());
    bool trusted = first_trusted_ ^ (before % 2 == 1);
    size_t start = before > 0 ? flips_[before - 1] : 0;
    for (size_t i = before; i <= flips_.size(); ++i, trusted = !trusted) {
      const size_t stop = i < flips_.size() ? flips_[i] : bytes_.size();
      const size_t from = start > begin ? start : begin;
      const size_t to = stop < end ? stop : end;
      if (from < to) visit(std::string_view(bytes_).substr(from, to - from), trusted);
      if (stop >= end) break;
      start = stop;
    }
  }

 private:
  std::string bytes_;
  std::vector<size_t> flips_;  // ascending offsets at which trust changes
  bool first_trusted_ = false;
};

class Interpreter;
struct Value;
struct List;
struct Dict;
struct Loop;
struct Macro;
struct Bound;

// Arguments of one call, in the order written.
struct CallArgs;
using Builtin = Result<Value> (*)(Interpreter&, Value self, const CallArgs&);

enum class ValueKind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,  // also tuples and ranges
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kBound,  // a method with its object, or a global function
};

struct Value {
  ValueKind kind = ValueKind::kUndefined;
  union {
    const std::string* missing = nullptr;  // kUndefined: the name, for error messages; may be null
    bool boolean;
    int64_t integer;
    double real;
    const Text* text;
    List* list;
    Dict* dict;  // kDict, kNamespace
    Loop* loop;
    const Macro* macro;
    const Bound* bound;
  };

  static Value Undefined(const std::string* name = nullptr);
  static Value None();
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  static Value String(const Text* value);

  bool is_undefined() const { return kind == ValueKind::kUndefined; }
  bool is_none() const { return kind == ValueKind::kNone; }
  bool is_string() const { return kind == ValueKind::kString; }
  bool is_list() const { return kind == ValueKind::kList; }
  bool is_dict() const { return kind == ValueKind::kDict; }
  bool is_integral() const { return kind == ValueKind::kInt || kind == ValueKind::kBool; }
  bool is_number() const { return is_integral() || kind == ValueKind::kFloat; }
  // Of a number.
  int64_t AsInt() const { return kind == ValueKind::kBool ? boolean : integer; }
  double AsDouble() const {
    return kind == ValueKind::kFloat ? real : static_cast<double>(AsInt());
  }
};

enum class ListKind : uint8_t { kList, kTuple, kRange };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int64_t begin = 0, end = 0, step = 1;  // kRange: as it was written, for printing
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion

  Value* Find(std::string_view key);
  Value* Find(const Value& key);
};

struct Bound {
  Value self;
  Builtin function = nullptr;
};

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

// Python's rules.
bool IsTruthy(const Value& value);
std::string_view TypeName(const Value& value);
// Each pair compared takes one of `steps`; values nested deeper than `depth_left` are an error.
Result<bool> Equal(const Value& a, const Value& b, int64_t& steps, int depth_left = 100);
// Negative, zero or positive; an error where Python has no order.
Result<int> Order(const Value& a, const Value& b, int64_t& steps, int depth_left = 100);

}  // namespace baltoro::jinja
