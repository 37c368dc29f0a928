#include "text/tool_declaration.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/python_text.h"

namespace baltoro {
namespace {

constexpr int kDepthMax = 100;

// Python's idea of false, by which the vendor's program decides what is absent.
bool IsFalsy(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return true;
    case Json::value_t::boolean:
      return !value.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return value.get<double>() == 0;
    default:
      return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
  }
}

// str(value) and, for strings inside of containers, repr(value).
std::string PythonText(const Json& value, bool quoted = false) {
  std::string out;
  switch (value.type()) {
    case Json::value_t::null:
      return "None";
    case Json::value_t::boolean:
      return value.get<bool>() ? "True" : "False";
    case Json::value_t::number_float:
      return PythonFloat(value.get<double>());
    case Json::value_t::string:
      if (!quoted) return value.get<std::string>();
      AppendPythonRepr(out, value.get_ref<const std::string&>());
      return out;
    case Json::value_t::array:
      for (const Json& item : value) out += (out.empty() ? "" : ", ") + PythonText(item, true);
      return "[" + out + "]";
    case Json::value_t::object:
      for (const auto& [key, item] : value.items()) {
        if (!out.empty()) out += ", ";
        AppendPythonRepr(out, key);
        out += ": " + PythonText(item, true);
      }
      return "{" + out + "}";
    default:
      return value.dump();
  }
}

// json.dumps(value, ensure_ascii=False)
void AppendJsonText(std::string& out, const Json& value) {
  bool first = true;
  switch (value.type()) {
    case Json::value_t::number_float:
      out += PythonFloat(value.get<double>());
      return;
    case Json::value_t::string:
      AppendPythonJson(out, value.get_ref<const std::string&>(), /*ensure_ascii=*/false);
      return;
    case Json::value_t::array:
      out += '[';
      for (const Json& item : value) {
        if (!std::exchange(first, false)) out += ", ";
        AppendJsonText(out, item);
      }
      out += ']';
      return;
    case Json::value_t::object:
      out += '{';
      for (const auto& [key, item] : value.items()) {
        if (!std::exchange(first, false)) out += ", ";
        AppendPythonJson(out, key, /*ensure_ascii=*/false);
        out += ": ";
        AppendJsonText(out, item);
      }
      out += '}';
      return;
    default:
      out += value.dump();
  }
}

// Lines of a comment; an empty line stays empty.
Result<std::string> CommentLines(const Json& description, std::string_view indent) {
  if (!description.is_string()) return InvalidArgument("a description must be a string");
  std::string out;
  std::string_view rest = description.get_ref<const std::string&>();
  for (;;) {
    const size_t newline = rest.find('\n');
    const std::string_view line = rest.substr(0, newline);
    if (!line.empty()) out += fmt::format("{}// {}", indent, line);
    if (newline == std::string_view::npos) return out;
    out += '\n';
    rest.remove_prefix(newline + 1);
  }
}

// One function's parameters. Parsing a schema comes before printing it, because $defs count only
// once the object that holds them was parsed, and are printed in that order.
class Schema {
 public:
  struct Type;
  using TypePtr = std::unique_ptr<Type>;
  struct Field {
    std::string name;
    TypePtr type;
    bool optional = false;
    const Json* standard = nullptr;  // the value named by "default", if it is not null
  };
  struct Type {
    std::string text;                   // of what has no parts
    const Json* description = nullptr;  // if it is not empty
    std::vector<std::pair<std::string, const Json*>> constraints;
    TypePtr item;  // of an array
    bool object = false;
    bool any_of = false;
    std::vector<TypePtr> choices;      // of anyOf
    std::vector<Field> fields;         // of an object
    const Json* additional = nullptr;  // additionalProperties, if it is not null
    TypePtr additional_type;           // if that is a schema
  };

  Result<std::string> Function(const Json& function) {
    static const Json kNothing = Json::object();
    const Json* parameters = &kNothing;
    if (function.contains("parameters") && !IsFalsy(function["parameters"])) {
      parameters = &function["parameters"];
    }
    BT_ASSIGN_OR_RETURN(const TypePtr root, ParseObject(*parameters, 0));

    std::vector<std::string> parts;
    const bool self_reference = self_reference_;  // those inside $defs come too late to count
    if (self_reference) {
      std::vector<const Field*> order;  // as written: this form alone is not ordered
      for (const Field& field : root->fields) order.push_back(&field);
      BT_ASSIGN_OR_RETURN(const std::string fields, PrintFields(order, "  "));
      const std::string_view border = fields.empty() ? "" : "\n";
      parts.push_back(fmt::format("interface parameters {{{0}{1}{0}}}", border, fields));
    }
    const auto definitions = definitions_;  // parsing them may add more, which are not printed
    for (const auto& [name, schema] : definitions) {
      BT_ASSIGN_OR_RETURN(const TypePtr type, Parse(*schema, 0));
      BT_ASSIGN_OR_RETURN(const std::string body, Print(*type, ""));
      if (!schema->is_object()) return InvalidArgument("a definition must be an object");
      std::string comment;
      if (schema->contains("description") && !IsFalsy((*schema)["description"])) {
        BT_ASSIGN_OR_RETURN(comment, CommentLines((*schema)["description"], ""));
        comment += '\n';
      }
      parts.push_back(fmt::format("{}interface {} {}", comment, name, body));
    }
    if (function.contains("description") && !IsFalsy(function["description"])) {
      BT_ASSIGN_OR_RETURN(std::string comment, CommentLines(function["description"], ""));
      parts.push_back(std::move(comment));
    }
    std::string argument = "parameters";
    if (!self_reference) {
      BT_ASSIGN_OR_RETURN(argument, Print(*root, ""));
    }
    const std::string name = function.contains("name") ? PythonText(function["name"]) : "function";
    parts.push_back(fmt::format("type {} = (_: {}) => any;", name, argument));
    return fmt::format("{}", fmt::join(parts, "\n"));
  }

 private:
  using Keys = std::span<const std::string_view>;

  static TypePtr Named(std::string text) {
    auto type = std::make_unique<Type>();
    type->text = std::move(text);
    return type;
  }

  // What any type carries: its description and the constraints that are shown for its kind.
  static void Annotate(Type& type, const Json& schema, Keys constraint_keys) {
    if (schema.contains("description") && !IsFalsy(schema["description"])) {
      type.description = &schema["description"];
    }
    for (const std::string_view key : constraint_keys) {
      const auto found = schema.find(std::string(key));
      if (found != schema.end()) type.constraints.emplace_back(key, &*found);
    }
  }

  Result<TypePtr> Parse(const Json& schema, int depth) {
    if (depth > kDepthMax) return InvalidArgument("schema nested too deeply");
    if (schema.is_boolean()) return Named(schema.get<bool>() ? "any" : "null");
    if (!schema.is_object()) return InvalidArgument("a schema must be an object or a boolean");
    if (schema.contains("$ref")) return ParseReference(schema);
    if (schema.contains("anyOf")) return ParseAnyOf(schema, depth);
    if (schema.contains("enum")) return ParseEnum(schema);
    if (!schema.contains("type")) {
      if (schema.empty()) return Named("any");
      return InvalidArgument("a schema without type");
    }
    const Json& kind = schema["type"];
    if (kind.is_array()) return ParseUnion(schema);
    if (!kind.is_string()) return InvalidArgument("a schema's type must be a string or a list");
    const auto& name = kind.get_ref<const std::string&>();
    if (name == "object") return ParseObject(schema, depth);
    if (name == "array") return ParseArray(schema, depth);
    static constexpr std::string_view kOfString[] = {"maxLength", "minLength", "pattern"};
    static constexpr std::string_view kOfNumber[] = {"maximum", "minimum"};
    const bool number = name == "number" || name == "integer";
    TypePtr type = Named(number ? "number" : name);
    Annotate(*type, schema, name == "string" ? Keys(kOfString) : number ? Keys(kOfNumber) : Keys());
    return type;
  }

  Result<TypePtr> ParseReference(const Json& schema) {
    const Json& reference = schema["$ref"];
    if (!reference.is_string()) return InvalidArgument("$ref must be a string");
    const auto& path = reference.get_ref<const std::string&>();
    std::string name = path.substr(path.rfind('/') + 1);
    if (path == "#") {
      self_reference_ = true;
      name = "parameters";
    } else {
      const auto found = definitions_.find(name);
      if (!path.starts_with("#/$defs/") || found == definitions_.end() ||
          !found->second->is_object()) {
        return InvalidArgument("$ref to what is not in $defs: " + path);
      }
    }
    TypePtr type = Named(std::move(name));
    Annotate(*type, schema, {});
    return type;
  }

  Result<TypePtr> ParseAnyOf(const Json& schema, int depth) {
    if (!schema["anyOf"].is_array()) return InvalidArgument("anyOf must be a list");
    TypePtr type = Named("");
    type->any_of = true;
    Annotate(*type, schema, {});
    for (const Json& choice : schema["anyOf"]) {
      BT_ASSIGN_OR_RETURN(TypePtr parsed, Parse(choice, depth + 1));
      type->choices.push_back(std::move(parsed));
    }
    return type;
  }

  // The declared type that enum values are held to; empty if none is declared.
  static Result<std::string> EnumType(const Json& schema) {
    if (!schema.contains("type")) return std::string();
    const Json* kind = &schema["type"];
    if (kind->is_array()) {
      const bool nullable = kind->size() == 2 && ((*kind)[0] == "null" || (*kind)[1] == "null");
      if (kind->size() != 1 && !nullable) return InvalidArgument("enum of several types");
      kind = &(*kind)[nullable && (*kind)[0] == "null" ? 1 : 0];
    }
    if (!kind->is_string()) return InvalidArgument("a schema's type must be a string or a list");
    return kind->get<std::string>();
  }

  static Result<TypePtr> ParseEnum(const Json& schema) {
    const Json& values = schema["enum"];
    if (!values.is_array()) return InvalidArgument("enum must be a list");
    BT_ASSIGN_OR_RETURN(const std::string kind, EnumType(schema));
    TypePtr type = Named("");
    Annotate(*type, schema, {});
    bool first = true;
    for (const Json& value : values) {
      // To Python a boolean is an integer.
      const bool whole = value.is_number_integer() || value.is_boolean();
      const bool fits = value.is_null() || (kind == "string"    ? value.is_string()
                                            : kind == "number"  ? value.is_number() || whole
                                            : kind == "integer" ? whole
                                            : kind == "boolean" ? value.is_boolean()
                                                                : true);
      if (!fits) return InvalidArgument("an enum value is not of the type " + kind);
      if (!std::exchange(first, false)) type->text += " | ";
      type->text += value.is_string() ? "\"" + value.get<std::string>() + "\"" : PythonText(value);
    }
    return type;
  }

  static Result<TypePtr> ParseUnion(const Json& schema) {
    static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
        {"string", "string"}, {"number", "number"}, {"integer", "number"},  {"boolean", "boolean"},
        {"null", "null"},     {"object", "{}"},     {"array", "Array<any>"}};
    TypePtr type = Named("");
    Annotate(*type, schema, {});
    bool first = true;
    for (const Json& kind : schema["type"]) {
      const auto* found =
          std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& entry) {
            return kind.is_string() && kind.get_ref<const std::string&>() == entry.first;
          });
      if (found == std::end(kNames)) return InvalidArgument("an unknown type in a list of types");
      if (!std::exchange(first, false)) type->text += " | ";
      type->text += found->second;
    }
    return type;
  }

  Result<TypePtr> ParseArray(const Json& schema, int depth) {
    static constexpr std::string_view kOfArray[] = {"maxItems", "minItems"};
    TypePtr type = Named("");
    Annotate(*type, schema, kOfArray);
    if (schema.contains("items") && !IsFalsy(schema["items"])) {
      BT_ASSIGN_OR_RETURN(type->item, Parse(schema["items"], depth + 1));
    } else {
      type->item = Named("any");
    }
    return type;
  }

  Result<TypePtr> ParseObject(const Json& schema, int depth) {
    if (!schema.is_object()) return InvalidArgument("parameters must be an object");
    TypePtr type = Named("");
    type->object = true;
    Annotate(*type, schema, {});
    if (schema.contains("$defs") && !IsFalsy(schema["$defs"])) {
      BT_RETURN_IF_ERROR(Define(schema["$defs"]));
    }
    if (schema.contains("additionalProperties") && !schema["additionalProperties"].is_null()) {
      type->additional = &schema["additionalProperties"];
      if (type->additional->is_object()) {
        BT_ASSIGN_OR_RETURN(type->additional_type, Parse(*type->additional, depth + 1));
      }
    }
    if (!schema.contains("properties")) return type;
    const Json& properties = schema["properties"];
    if (!properties.is_object()) return InvalidArgument("properties must be an object");
    std::set<std::string> required;
    if (schema.contains("required")) {
      if (!schema["required"].is_array()) return InvalidArgument("required must be a list");
      for (const Json& name : schema["required"]) {
        if (name.is_structured()) return InvalidArgument("required must hold names");
        if (name.is_string()) required.insert(name.get<std::string>());
      }
    }
    for (const auto& [name, property] : properties.items()) {
      Field field{name, nullptr, !required.contains(name), nullptr};
      BT_ASSIGN_OR_RETURN(field.type, Parse(property, depth + 1));
      if (property.is_object() && property.contains("default") && !property["default"].is_null()) {
        field.standard = &property["default"];
      }
      type->fields.push_back(std::move(field));
    }
    return type;
  }

  Status Define(const Json& definitions) {
    if (!definitions.is_object()) return InvalidArgument("$defs must be an object");
    // Of two the later one counts, in the earlier one's place.
    for (const auto& [name, schema] : definitions.items()) definitions_[name] = &schema;
    return {};
  }

  // The comments above a field or item, each line with its end.
  static Result<std::string> Docstring(const Type& type, std::string_view indent) {
    std::string out;
    if (type.description != nullptr) {
      BT_ASSIGN_OR_RETURN(out, CommentLines(*type.description, indent));
      out += '\n';
    }
    std::string constraints;
    for (const auto& [key, value] : type.constraints) {
      if (!constraints.empty()) constraints += ", ";
      constraints += fmt::format("{}: {}", key, PythonText(*value));
    }
    if (!constraints.empty()) out += fmt::format("{}// {}\n", indent, constraints);
    return out;
  }

  static Result<std::string> Print(const Type& type, const std::string& indent) {
    if (type.object) return PrintObject(type, indent);
    if (type.item) {
      const std::string deeper = indent + "  ";
      BT_ASSIGN_OR_RETURN(const std::string comments, Docstring(*type.item, deeper));
      BT_ASSIGN_OR_RETURN(const std::string item,
                          Print(*type.item, comments.empty() ? indent : deeper));
      if (comments.empty()) return fmt::format("Array<{}>", item);
      return fmt::format("Array<\n{}{}{}\n{}>", comments, deeper, item, indent);
    }
    if (!type.any_of) return type.text;
    std::vector<std::string> choices;
    for (const TypePtr& choice : type.choices) {
      BT_ASSIGN_OR_RETURN(std::string text, Print(*choice, indent));
      choices.push_back(std::move(text));
    }
    return fmt::format("{}", fmt::join(choices, " | "));
  }

  static Result<std::string> PrintObject(const Type& type, const std::string& indent) {
    const std::string deeper = indent + "  ";
    std::vector<const Field*> order;  // required ones first, each group by name
    for (const Field& field : type.fields) order.push_back(&field);
    std::stable_sort(order.begin(), order.end(), [](const Field* a, const Field* b) {
      return a->optional != b->optional ? b->optional : a->name < b->name;
    });
    BT_ASSIGN_OR_RETURN(std::string fields, PrintFields(order, deeper));
    if (type.additional != nullptr) {
      std::string others = "never";
      if (type.additional_type) {
        BT_ASSIGN_OR_RETURN(others, Print(*type.additional_type, deeper));
      } else if (!type.additional->is_boolean()) {
        return InvalidArgument("additionalProperties must be a schema");
      } else if (type.additional->get<bool>()) {
        others = "any";
      }
      if (!type.fields.empty()) fields += ",\n";
      fields += fmt::format("{}[k: string]: {}", deeper, others);
    }
    if (fields.empty()) return std::string("{}");
    return fmt::format("{{\n{}\n{}}}", fields, indent);
  }

  static Result<std::string> PrintFields(const std::vector<const Field*>& fields,
                                         const std::string& indent) {
    std::string out;
    for (const Field* each : fields) {
      const Field& field = *each;
      if (!out.empty()) out += ",\n";
      BT_ASSIGN_OR_RETURN(const std::string comments, Docstring(*field.type, indent));
      out += comments;
      if (field.standard != nullptr) {
        std::string value;
        if (field.standard->is_number() || field.standard->is_boolean()) {
          value = PythonText(*field.standard);
        } else {
          AppendJsonText(value, *field.standard);
        }
        out += fmt::format("{}// Default: {}\n", indent, value);
      }
      BT_ASSIGN_OR_RETURN(const std::string type, Print(*field.type, indent));
      out += fmt::format("{}{}{}: {}", indent, field.name, field.optional ? "?" : "", type);
    }
    return out;
  }

  OrderedObject<std::string, const Json*> definitions_;  // in order of appearance
  bool self_reference_ = false;
};

}  // namespace

Json SortKeys(const Json& value) {
  if (value.is_array()) {
    Json sorted = Json::array();
    for (const Json& item : value) sorted.push_back(SortKeys(item));
    return sorted;
  }
  if (!value.is_object()) return value;
  std::vector<std::pair<std::string_view, const Json*>> entries;
  for (const auto& [key, item] : value.items()) entries.emplace_back(key, &item);
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  Json sorted = Json::object();
  for (const auto& [key, item] : entries) sorted[key] = SortKeys(*item);
  return sorted;
}

Result<std::string> ToolsTypescript(const Json& tools) {
  if (!tools.is_array()) return InvalidArgument("tools must be a list");
  std::vector<std::string> functions;
  for (const Json& tool : tools) {
    if (!tool.is_object()) return InvalidArgument("a tool must be an object");
    if (!tool.contains("type") || tool["type"] != "function") continue;
    if (!tool.contains("function") || IsFalsy(tool["function"])) continue;
    if (!tool["function"].is_object()) return InvalidArgument("a function must be an object");
    BT_ASSIGN_OR_RETURN(std::string text, Schema().Function(tool["function"]));
    functions.push_back(std::move(text));
  }
  if (functions.empty()) return std::string();
  return fmt::format("# Tools\n\n## functions\nnamespace functions {{\n{}\n}}\n",
                     fmt::join(functions, "\n"));
}

}  // namespace baltoro
