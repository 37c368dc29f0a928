// The filter tojson as Hugging Face defines it: Python's json.dumps, keys in their order, nothing
// escaped for HTML.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/python_text.h"

namespace baltoro::jinja {
namespace {

struct Style {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level of it
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

class Dumper {
 public:
  Dumper(Interpreter& in, const Style& style) : in_(in), style_(style) {}

  Status Dump(const Value& value, int depth) {
    if (depth > 100) return InvalidArgument("a value nested too deeply for tojson");
    // Checked as it grows: shared parts of a value may be printed many times.
    BT_RETURN_IF_ERROR(in_.Charge(1 + static_cast<int64_t>((out_.size() - charged_) / 256)));
    if (out_.size() - charged_ >= 256) charged_ = out_.size();
    switch (value.kind) {
      case ValueKind::kNone:
        out_ += "null";
        return {};
      case ValueKind::kBool:
        out_ += value.boolean ? "true" : "false";
        return {};
      case ValueKind::kInt:
        out_ += std::to_string(value.integer);
        return {};
      case ValueKind::kFloat:
        out_ += Number(value.real);
        return {};
      case ValueKind::kString:
        AppendPythonJson(out_, value.text->bytes(), style_.ensure_ascii);
        return {};
      case ValueKind::kList:
        if (value.list->kind == ListKind::kRange) break;
        return DumpList(*value.list, depth);
      case ValueKind::kDict:
        return DumpDict(*value.dict, depth);
      default:
        break;
    }
    return InvalidArgument(
        fmt::format("Object of type {} is not JSON serializable", TypeName(value)));
  }

  std::string Take() { return std::move(out_); }

 private:
  static std::string Number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return PythonFloat(value);
  }

  void NewLine(int depth) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += *style_.indent;
  }

  Status DumpList(const List& list, int depth) {
    out_ += '[';
    bool first = true;
    for (const Value& item : list.items) {
      if (!std::exchange(first, false)) out_ += style_.item_separator;
      NewLine(depth + 1);
      BT_RETURN_IF_ERROR(Dump(item, depth + 1));
    }
    if (!first) NewLine(depth);
    out_ += ']';
    return {};
  }

  Status DumpDict(const Dict& dict, int depth) {
    std::vector<std::pair<Value, Value>> entries = dict.entries;
    if (style_.sort_keys) {
      BT_RETURN_IF_ERROR(in_.Charge(static_cast<int64_t>(entries.size())));
      for (const auto& [key, value] : entries) {
        if (!key.is_string()) return InvalidArgument("sort_keys needs keys that are strings");
      }
      std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
        return a.first.text->bytes() < b.first.text->bytes();
      });
    }
    out_ += '{';
    bool first = true;
    for (const auto& [key, value] : entries) {
      if (!std::exchange(first, false)) out_ += style_.item_separator;
      NewLine(depth + 1);
      DumpKey(key);
      out_ += style_.key_separator;
      BT_RETURN_IF_ERROR(Dump(value, depth + 1));
    }
    if (!first) NewLine(depth);
    out_ += '}';
    return {};
  }

  void DumpKey(const Value& key) {
    if (key.is_string()) {
      AppendPythonJson(out_, key.text->bytes(), style_.ensure_ascii);
      return;
    }
    out_ += '"';
    if (key.is_none()) out_ += "null";
    if (key.kind == ValueKind::kBool) out_ += key.boolean ? "true" : "false";
    if (key.kind == ValueKind::kInt) out_ += std::to_string(key.integer);
    if (key.kind == ValueKind::kFloat) out_ += Number(key.real);
    out_ += '"';
  }

  Interpreter& in_;
  const Style& style_;
  std::string out_;
  size_t charged_ = 0;
};

}  // namespace

Result<Value> ToJson(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[4];
  BT_RETURN_IF_ERROR(Bind(args, {"ensure_ascii", "indent", "separators", "sort_keys"}, a));
  Style style;
  style.ensure_ascii = BoolArgument(a[0], false);
  style.sort_keys = BoolArgument(a[3], false);
  if (a[1] && a[1]->is_string()) {
    style.indent = a[1]->text->bytes();
  } else if (a[1] && !a[1]->is_none()) {
    BT_ASSIGN_OR_RETURN(const int64_t width, IntArgument(a[1], "indent"));
    style.indent = std::string(static_cast<size_t>(std::clamp<int64_t>(width, 0, 64)), ' ');
  }
  if (style.indent) {
    if (style.indent->size() > 64) return InvalidArgument("indent over 64 bytes");
    style.item_separator.pop_back();  // ends in the line break instead of the space
  }
  if (a[2] && !a[2]->is_none()) {
    BT_ASSIGN_OR_RETURN(const std::vector<Value> both, in.Items(*a[2]));
    if (both.size() != 2 || !both[0].is_string() || !both[1].is_string()) {
      return InvalidArgument("separators must be two strings");
    }
    style.item_separator = both[0].text->bytes();
    style.key_separator = both[1].text->bytes();
  }
  Dumper dumper(in, style);
  BT_RETURN_IF_ERROR(dumper.Dump(self, 0));
  return in.NewString(Text(dumper.Take(), /*trusted=*/false));
}

}  // namespace baltoro::jinja
