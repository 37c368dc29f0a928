// The interpreter's dealings with values: printing, iterating, looking up, arithmetic.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/python_text.h"

namespace baltoro::jinja {
namespace {

// The index a Python subscript means, or nothing if it is out of range.
std::optional<size_t> ResolveIndex(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

Status WrongTypes(std::string_view what, const Value& a, const Value& b) {
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  return InvalidArgument(fmt::format("cannot {} '{}' and '{}'", what, TypeName(a), TypeName(b)));
}

Result<Value> IntegerArithmetic(Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kDiv:
      if (b == 0) return InvalidArgument("division by zero");
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case Op::kFloorDiv:
    case Op::kMod: {
      if (b == 0) return InvalidArgument("division by zero");
      if (b == -1) {
        if (op == Op::kMod) return Value::Int(0);
        overflow = __builtin_sub_overflow(0, a, &result);
        break;
      }
      const bool inexact = a % b != 0 && (a < 0) != (b < 0);  // rounds down, not to zero
      result = op == Op::kMod ? a % b + (inexact ? b : 0) : a / b - (inexact ? 1 : 0);
      break;
    }
    case Op::kPow: {
      if (b < 0) return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
      result = 1;
      for (int64_t base = a; b > 0 && !overflow; b >>= 1) {
        if (b & 1) overflow = __builtin_mul_overflow(result, base, &result);
        if (b > 1 && !overflow) overflow = __builtin_mul_overflow(base, base, &base);
      }
      break;
    }
    default:
      break;
  }
  if (overflow) return InvalidArgument("integer out of range");
  return Value::Int(result);
}

Result<Value> FloatArithmetic(Op op, double a, double b) {
  if (b == 0 && (op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod)) {
    return InvalidArgument("division by zero");
  }
  switch (op) {
    case Op::kAdd:
      return Value::Float(a + b);
    case Op::kSub:
      return Value::Float(a - b);
    case Op::kMul:
      return Value::Float(a * b);
    case Op::kDiv:
      return Value::Float(a / b);
    case Op::kPow:
      return Value::Float(std::pow(a, b));
    default:
      break;
  }
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == Op::kMod) return Value::Float(rest);
  return Value::Float(std::round((a - rest) / b));
}

}  // namespace

Status Interpreter::AppendString(const Value& value, Text& out) {
  switch (value.kind) {
    case ValueKind::kUndefined:
      return {};
    case ValueKind::kString:
      BT_RETURN_IF_ERROR(ChargeBytes(value.text->size()));
      if (out.size() + value.text->size() > limits_.output_bytes) {
        return InvalidArgument(fmt::format("more than {} bytes of text", limits_.output_bytes));
      }
      out.Append(*value.text);
      return {};
    default: {
      std::string text;
      BT_RETURN_IF_ERROR(AppendRepr(value, text));
      out.Append(text, /*trusted=*/false);
      return {};
    }
  }
}

Result<Text> Interpreter::ToText(const Value& value) {
  Text text;
  BT_RETURN_IF_ERROR(AppendString(value, text));
  return text;
}

Status Interpreter::AppendRepr(const Value& value, std::string& out, int depth_left) {
  if (depth_left == 0) return InvalidArgument("a value nested too deeply to print");
  BT_RETURN_IF_ERROR(Charge(1));
  if (out.size() > limits_.output_bytes) return InvalidArgument("a value too long to print");
  switch (value.kind) {
    case ValueKind::kUndefined:
      out += "Undefined";
      return {};
    case ValueKind::kNone:
      out += "None";
      return {};
    case ValueKind::kBool:
      out += value.boolean ? "True" : "False";
      return {};
    case ValueKind::kInt:
      out += std::to_string(value.integer);
      return {};
    case ValueKind::kFloat:
      out += PythonFloat(value.real);
      return {};
    case ValueKind::kString:
      BT_RETURN_IF_ERROR(ChargeBytes(value.text->size()));
      AppendPythonRepr(out, value.text->bytes());
      return {};
    case ValueKind::kList: {
      const auto& items = value.list->items;
      const bool tuple = value.list->kind == ListKind::kTuple;
      if (value.list->kind == ListKind::kRange) {
        out += fmt::format("range({}, {}", value.list->begin, value.list->end);
        if (value.list->step != 1) out += fmt::format(", {}", value.list->step);
        out += ')';
        return {};
      }
      out += tuple ? '(' : '[';
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += ", ";
        BT_RETURN_IF_ERROR(AppendRepr(items[i], out, depth_left - 1));
      }
      if (tuple && items.size() == 1) out += ',';
      out += tuple ? ')' : ']';
      return {};
    }
    case ValueKind::kDict: {
      out += '{';
      bool first = true;
      for (const auto& [key, item] : value.dict->entries) {
        if (!std::exchange(first, false)) out += ", ";
        BT_RETURN_IF_ERROR(AppendRepr(key, out, depth_left - 1));
        out += ": ";
        BT_RETURN_IF_ERROR(AppendRepr(item, out, depth_left - 1));
      }
      out += '}';
      return {};
    }
    default:
      return InvalidArgument(fmt::format("a '{}' cannot be printed", TypeName(value)));
  }
}

Result<std::vector<Value>> Interpreter::Items(const Value& value) {
  std::vector<Value> items;
  switch (value.kind) {
    case ValueKind::kUndefined:
      return items;
    case ValueKind::kList:
      BT_RETURN_IF_ERROR(Charge(static_cast<int64_t>(value.list->items.size() / 4)));
      return value.list->items;
    case ValueKind::kDict:
      BT_RETURN_IF_ERROR(Charge(static_cast<int64_t>(value.dict->entries.size() / 4)));
      for (const auto& [key, item] : value.dict->entries) items.push_back(key);
      return items;
    case ValueKind::kString: {
      const Text& text = *value.text;
      BT_RETURN_IF_ERROR(Charge(static_cast<int64_t>(text.size() / 4)));
      for (size_t at = 0; at < text.size();) {
        const size_t length = CharacterLength(std::string_view(text.bytes()).substr(at));
        items.push_back(Value::String(&texts_.emplace_back(text.Substring(at, at + length))));
        at += length;
      }
      return items;
    }
    default:
      return InvalidArgument(fmt::format("a '{}' cannot be iterated", TypeName(value)));
  }
}

Result<bool> Interpreter::Contains(const Value& container, const Value& item) {
  switch (container.kind) {
    case ValueKind::kUndefined:
      return false;
    case ValueKind::kString:
      if (!item.is_string()) {
        return InvalidArgument(fmt::format("a '{}' is never in a str", TypeName(item)));
      }
      BT_RETURN_IF_ERROR(ChargeBytes(container.text->size()));
      return container.text->bytes().find(item.text->bytes()) != std::string::npos;
    case ValueKind::kList:
      for (const Value& candidate : container.list->items) {
        BT_ASSIGN_OR_RETURN(const bool same, Equal(candidate, item, steps_left_));
        if (same) return true;
      }
      return false;
    case ValueKind::kDict:
      BT_RETURN_IF_ERROR(Charge(static_cast<int64_t>(container.dict->entries.size() / 16)));
      return container.dict->Find(item) != nullptr;
    default:
      return InvalidArgument(fmt::format("a '{}' contains nothing", TypeName(container)));
  }
}

Result<Value> Interpreter::GetItem(const Value& object, const Value& key) {
  switch (object.kind) {
    case ValueKind::kUndefined:
      return UndefinedError(object);
    case ValueKind::kList:
      if (key.is_integral()) {
        const auto index = ResolveIndex(key.AsInt(), object.list->items.size());
        return index ? object.list->items[*index] : Value::Undefined();
      }
      break;
    case ValueKind::kString:
      if (key.is_integral()) {
        const std::string& bytes = object.text->bytes();
        BT_RETURN_IF_ERROR(ChargeBytes(bytes.size()));
        const auto index = ResolveIndex(key.AsInt(), CharacterCount(bytes));
        if (!index) return Value::Undefined();
        size_t at = 0;
        for (size_t i = 0; i < *index; ++i) {
          at += CharacterLength(std::string_view(bytes).substr(at));
        }
        const size_t length = CharacterLength(std::string_view(bytes).substr(at));
        return NewString(object.text->Substring(at, at + length));
      }
      break;
    case ValueKind::kDict:
      BT_RETURN_IF_ERROR(Charge(static_cast<int64_t>(object.dict->entries.size() / 16)));
      if (const Value* found = object.dict->Find(key)) return *found;
      break;
    default:
      break;
  }
  // As Jinja: what is no item may be an attribute.
  if (!key.is_string()) return Value::Undefined();
  return GetAttribute(object, key.text->bytes());
}

Result<Value> Interpreter::GetAttribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) return UndefinedError(object);
  if (const Builtin method = FindMethod(object, name)) {
    Value value;
    value.kind = ValueKind::kBound;
    value.bound = &bounds_.emplace_back(Bound{object, method});
    return value;
  }
  if (object.kind == ValueKind::kLoop) {
    const Loop& loop = *object.loop;
    const auto index = static_cast<int64_t>(loop.index);
    const auto size = static_cast<int64_t>(loop.items.size());
    if (name == "index") return Value::Int(index + 1);
    if (name == "index0") return Value::Int(index);
    if (name == "revindex") return Value::Int(size - index);
    if (name == "revindex0") return Value::Int(size - index - 1);
    if (name == "first") return Value::Bool(index == 0);
    if (name == "last") return Value::Bool(index == size - 1);
    if (name == "length") return Value::Int(size);
    if (name == "depth") return Value::Int(1);  // of recursion, which there is none of
    if (name == "depth0") return Value::Int(0);
    if (name == "previtem" && index > 0) return loop.items[loop.index - 1];
    if (name == "nextitem" && index + 1 < size) return loop.items[loop.index + 1];
    return Value::Undefined(&name);
  }
  if (object.is_dict() || object.kind == ValueKind::kNamespace) {
    BT_RETURN_IF_ERROR(Charge(static_cast<int64_t>(object.dict->entries.size() / 16)));
    if (const Value* found = object.dict->Find(std::string_view(name))) return *found;
  }
  return Value::Undefined(&name);
}

Status Interpreter::SetEntry(Dict& dict, const Value& key, const Value& value) {
  if (!key.is_string() && !key.is_number() && !key.is_none()) {
    return InvalidArgument(fmt::format("a '{}' cannot be a key", TypeName(key)));
  }
  BT_RETURN_IF_ERROR(Charge(static_cast<int64_t>(1 + dict.entries.size() / 16)));
  if (Value* known = dict.Find(key)) {
    *known = value;
  } else {
    dict.entries.emplace_back(key, value);
  }
  return {};
}

Result<Value> Interpreter::Arithmetic(Op op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return IntegerArithmetic(op, a.AsInt(), b.AsInt());
  if (a.is_number() && b.is_number()) return FloatArithmetic(op, a.AsDouble(), b.AsDouble());
  if (op == Op::kAdd && a.is_string() && b.is_string()) {
    Text text;
    BT_RETURN_IF_ERROR(AppendString(a, text));
    BT_RETURN_IF_ERROR(AppendString(b, text));
    return NewString(std::move(text));
  }
  if (op == Op::kAdd && a.is_list() && b.is_list() && a.list->kind == b.list->kind &&
      a.list->kind != ListKind::kRange) {
    BT_ASSIGN_OR_RETURN(std::vector<Value> items, Items(a));
    BT_ASSIGN_OR_RETURN(const std::vector<Value> more, Items(b));
    items.insert(items.end(), more.begin(), more.end());
    return NewList(std::move(items), a.list->kind);
  }
  if (op == Op::kMul && (a.is_integral() || b.is_integral())) {
    const Value& sequence = a.is_integral() ? b : a;
    const int64_t times = std::max<int64_t>(0, (a.is_integral() ? a : b).AsInt());
    if (sequence.is_string()) {
      Text text;
      for (int64_t i = 0; i < times && !sequence.text->empty(); ++i) {
        BT_RETURN_IF_ERROR(Charge(1));
        BT_RETURN_IF_ERROR(AppendString(sequence, text));
      }
      return NewString(std::move(text));
    }
    if (sequence.is_list() && sequence.list->kind != ListKind::kRange) {
      std::vector<Value> items;
      for (int64_t i = 0; i < times && !sequence.list->items.empty(); ++i) {
        BT_RETURN_IF_ERROR(Charge(1 + static_cast<int64_t>(sequence.list->items.size() / 4)));
        items.insert(items.end(), sequence.list->items.begin(), sequence.list->items.end());
      }
      return NewList(std::move(items), sequence.list->kind);
    }
  }
  static constexpr std::string_view kVerbs[] = {
      "add", "subtract", "multiply", "divide", "floor-divide", "take the remainder of", "raise"};
  return WrongTypes(kVerbs[static_cast<size_t>(op)], a, b);
}

}  // namespace baltoro::jinja
