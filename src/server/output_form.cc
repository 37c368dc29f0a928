#include "server/output_form.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "server/root_object.h"

namespace baltoro {
namespace {

constexpr size_t kSchemaBytesMax = 256 * 1024;
constexpr size_t kPatternBytesMax = 16 * 1024;
constexpr size_t kGrammarBytesMax = 64 * 1024;
constexpr size_t kChoicesMax = 1024;
constexpr size_t kChoiceBytesMax = 4096;

// Fields that change what the grammar would be, and that no grammar here knows.
constexpr std::string_view kUnsupported[] = {"whitespace_pattern", "structural_tag"};

// The one form of a request as it is gathered from several fields.
class FormReader {
 public:
  FormReader(FieldReader& reader, OutputForm& out) : reader_(reader), out_(out) {}

  // A JSON Schema, as itself or as text.
  void Schema(std::string_view param, std::string path, const Json& field) {
    if (!Claim(param, OutputFormKind::kJsonSchema, std::move(path))) return;
    if (field.is_string()) {
      const auto& text = field.get_ref<const std::string&>();
      if (text.size() > kSchemaBytesMax) return TooLong(param, kSchemaBytesMax);
      Result<Json> parsed = ParseJson(text);
      if (!parsed.ok()) return Fail(param, "the schema is not JSON: " + parsed.status().message());
      out_.schema = std::move(parsed).value();
    } else {
      out_.schema = field;
    }
    if (!out_.schema.is_object() && !out_.schema.is_boolean()) {
      return Fail(param, "the schema must be an object");
    }
    if (Bytes(out_.schema) > kSchemaBytesMax) TooLong(param, kSchemaBytesMax);
  }

  // As OpenAI's structured outputs, whose clients read an object.
  void MustAllowObjects(std::string_view param) {
    if (!reader_.ok() || !NeverAnObject(out_.schema)) return;
    Fail(param,
         "the answer must be an object, and the schema allows none; structured_outputs takes any "
         "schema");
  }

  void AnyObject(std::string_view param, std::string path) {
    (void)Claim(param, OutputFormKind::kJsonObject, std::move(path));
  }

  void Text(std::string_view param, std::string path, const Json& field, OutputFormKind kind) {
    if (!Claim(param, kind, std::move(path))) return;
    if (!field.is_string() || field.get_ref<const std::string&>().empty()) {
      return Fail(param, "must be a text that is not empty");
    }
    out_.text = field.get<std::string>();
    const size_t most = kind == OutputFormKind::kRegex ? kPatternBytesMax : kGrammarBytesMax;
    if (out_.text.size() > most) TooLong(param, most);
  }

  void Choices(std::string_view param, std::string path, const Json& field) {
    if (!Claim(param, OutputFormKind::kChoice, std::move(path))) return;
    if (!field.is_array() || field.empty() || field.size() > kChoicesMax) {
      return Fail(param, fmt::format("must be a list of 1 to {} strings", kChoicesMax));
    }
    for (const Json& item : field) {
      if (!item.is_string() || item.get_ref<const std::string&>().empty()) {
        return Fail(param, "each choice must be a string that is not empty");
      }
      if (item.get_ref<const std::string&>().size() > kChoiceBytesMax) {
        return TooLong(param, kChoiceBytesMax);
      }
      out_.choices.push_back(item.get<std::string>());
    }
  }

  void Fail(std::string_view param, const std::string& why) {
    // The path begins with the field, so that saying both would say the field twice.
    if (out_.path.starts_with(param)) return reader_.FailAt(param, out_.path, why);
    reader_.Fail(param, why);
  }

 private:
  static size_t Bytes(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace).size();
  }

  void TooLong(std::string_view param, size_t most) {
    Fail(param, fmt::format("longer than {} bytes", most));
  }

  // False if another field was first.
  bool Claim(std::string_view param, OutputFormKind kind, std::string path) {
    if (out_.kind != OutputFormKind::kFree) {
      reader_.Fail(param,
                   fmt::format("cannot be combined with {}: only one of them can hold", out_.path));
      return false;
    }
    out_.kind = kind;
    out_.path = std::move(path);
    return true;
  }

  FieldReader& reader_;
  OutputForm& out_;
};

void ReadResponseFormat(FieldReader& reader, FormReader& form) {
  constexpr std::string_view kParam = "response_format";
  const Json* format = reader.Find(kParam);
  if (format == nullptr) return;
  const bool typed =
      format->is_object() && format->contains("type") && (*format)["type"].is_string();
  if (!typed) return reader.Fail(kParam, "must be an object with a type");
  const std::string type = (*format)["type"].get<std::string>();
  if (type == "text") return;
  if (type == "json_object") return form.AnyObject(kParam, std::string(kParam));
  if (type != "json_schema") {
    return reader.Fail(kParam, fmt::format("the type must be text, json_object or json_schema; "
                                           "\"{}\" is not supported",
                                           type.substr(0, 64)));
  }
  const auto named = format->find("json_schema");
  const bool has_schema = named != format->end() && named->is_object() && named->contains("schema");
  if (!has_schema) return reader.Fail(kParam, "json_schema.schema is required");
  form.Schema(kParam, "response_format.json_schema.schema", (*named)["schema"]);
  form.MustAllowObjects(kParam);
}

void ReadStructuredOutputs(FieldReader& reader, FormReader& form) {
  constexpr std::string_view kParam = "structured_outputs";
  const Json* field = reader.Find(kParam);
  if (field == nullptr) return;
  if (!field->is_object()) return reader.Fail(kParam, "must be an object");
  FieldReader inner(*field);
  for (const std::string_view name : kUnsupported) {
    if (inner.Find(name) != nullptr) {
      return reader.Fail(kParam, fmt::format("\"{}\" is not supported", name));
    }
  }
  for (const std::string_view name : {"disable_any_whitespace", "disable_additional_properties"}) {
    bool value = false;
    inner.Bool(name, value);
    if (value) return reader.Fail(kParam, fmt::format("\"{}\" is not supported", name));
  }
  bool json_object = false;
  inner.Bool("json_object", json_object);
  if (!inner.ok()) return reader.Fail(kParam, inner.error()->message);

  const auto path = [&](std::string_view name) { return fmt::format("{}.{}", kParam, name); };
  int asked = json_object ? 1 : 0;
  for (const std::string_view name : {"json", "regex", "choice", "grammar"}) {
    if (inner.Find(name) != nullptr) ++asked;
  }
  if (asked != 1) {
    return reader.Fail(kParam, "needs exactly one of json, regex, choice, grammar and json_object");
  }
  if (json_object) form.AnyObject(kParam, path("json_object"));
  if (const Json* json = inner.Find("json")) form.Schema(kParam, path("json"), *json);
  if (const Json* regex = inner.Find("regex")) {
    form.Text(kParam, path("regex"), *regex, OutputFormKind::kRegex);
  }
  if (const Json* choice = inner.Find("choice")) form.Choices(kParam, path("choice"), *choice);
  if (const Json* grammar = inner.Find("grammar")) {
    form.Text(kParam, path("grammar"), *grammar, OutputFormKind::kGrammar);
  }
}

// The names that structured_outputs had before. Their backend is ours to choose.
void ReadGuided(FieldReader& reader, FormReader& form) {
  if (const Json* json = reader.Find("guided_json")) {
    form.Schema("guided_json", "guided_json", *json);
  }
  bool json_object = false;
  reader.Bool("guided_json_object", json_object);
  if (json_object) form.AnyObject("guided_json_object", "guided_json_object");
  if (const Json* regex = reader.Find("guided_regex")) {
    form.Text("guided_regex", "guided_regex", *regex, OutputFormKind::kRegex);
  }
  if (const Json* choice = reader.Find("guided_choice")) {
    form.Choices("guided_choice", "guided_choice", *choice);
  }
  if (const Json* grammar = reader.Find("guided_grammar")) {
    form.Text("guided_grammar", "guided_grammar", *grammar, OutputFormKind::kGrammar);
  }
  if (reader.Find("guided_whitespace_pattern") != nullptr) {
    reader.Fail("guided_whitespace_pattern",
                "is not supported: white space in JSON is nothing, one space, or a line break and "
                "up to 20 spaces");
  }
}

}  // namespace

void ReadOutputForm(FieldReader& reader, OutputForm& out) {
  FormReader form(reader, out);
  ReadResponseFormat(reader, form);
  ReadStructuredOutputs(reader, form);
  ReadGuided(reader, form);
}

}  // namespace baltoro
