#include "verify/validity.h"

#include <fmt/format.h>

#include "grammar/json_schema_validate.h"
#include "terminal/safe_text.h"

namespace baltoro {
namespace {

const Json* Member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// Empty: valid, or a keyword is not understood here.
std::string WhyUnfit(const Json& schema, const Json& value) {
  Result<SchemaIndex> index = SchemaIndex::Make(schema, "schema");
  if (!index.ok()) return "";
  CompileBudget budget;
  SchemaContext context(std::move(index).value(), /*refuses=*/false, nullptr, &budget);
  if (SchemaValidator(context).Check(schema, value) != Verdict::kNo) return "";
  return "not valid against its schema: " + ForTerminal(value.dump());
}

const Json* FunctionNamed(const Json& tools, const std::string& name) {
  for (const Json& tool : tools) {
    const Json* function = Member(tool, "function");
    const Json* declared = function == nullptr ? nullptr : Member(*function, "name");
    if (declared != nullptr && *declared == Json(name)) return function;
  }
  return nullptr;
}

std::string WrongCall(const Json& tools, const StreamedCall& call) {
  const Json* function = FunctionNamed(tools, call.name);
  if (function == nullptr) {
    return fmt::format("a call names \"{}\", which is not declared", ForTerminal(call.name));
  }
  const Result<Json> arguments = ParseJson(call.arguments);
  if (!arguments.ok()) {
    return fmt::format("the arguments of {} are no JSON: {}", call.name,
                       ForTerminal(call.arguments));
  }
  if (!arguments.value().is_object()) {
    return fmt::format("the arguments of {} are no object", call.name);
  }
  const Json* schema = Member(*function, "parameters");
  const std::string why = schema == nullptr ? "" : WhyUnfit(*schema, arguments.value());
  return why.empty() ? "" : fmt::format("the arguments of {} are {}", call.name, why);
}

// The name that must be called, "" for any, null where none must be.
const Json* DemandedCall(const Json& request, std::string& name) {
  const Json* choice = Member(request, "tool_choice");
  if (choice == nullptr) return nullptr;
  if (choice->is_object()) {
    const Json* function = Member(*choice, "function");
    const Json* named = function == nullptr ? nullptr : Member(*function, "name");
    if (named != nullptr && named->is_string()) name = named->get<std::string>();
    return choice;
  }
  return *choice == Json("required") ? choice : nullptr;
}

// Whether a request asks for a form of the content.
bool AsksForForm(const Json& request) {
  const Json* format = Member(request, "response_format");
  const Json* type = format == nullptr ? nullptr : Member(*format, "type");
  return type != nullptr && (*type == Json("json_schema") || *type == Json("json_object"));
}

}  // namespace

std::vector<std::string> WrongCalls(const Json& request, const std::vector<StreamedCall>& calls) {
  std::vector<std::string> wrong;
  const Json* declared = Member(request, "tools");
  const Json tools = declared != nullptr && declared->is_array() ? *declared : Json::array();
  for (const StreamedCall& call : calls) {
    if (std::string why = WrongCall(tools, call); !why.empty()) wrong.push_back(std::move(why));
  }
  std::string name;
  if (DemandedCall(request, name) != nullptr) {
    if (calls.empty()) wrong.push_back("no tool is called, though tool_choice demands it");
    if (!calls.empty() && !name.empty() && calls.front().name != name) {
      wrong.push_back(fmt::format("tool_choice demands {}, and {} is called", name,
                                  ForTerminal(calls.front().name)));
    }
  }
  const Json* choice = Member(request, "tool_choice");
  if (choice != nullptr && *choice == Json("none") && !calls.empty()) {
    wrong.push_back("a tool is called, though tool_choice is none");
  }
  return wrong;
}

std::string WrongForm(const Json& request, const std::string& content) {
  if (!AsksForForm(request)) return "";
  const Result<Json> value = ParseJson(content);
  if (!value.ok()) return "the content is no JSON: " + ForTerminal(content);
  const Json& format = *Member(request, "response_format");
  if (*Member(format, "type") == Json("json_object")) {
    return value.value().is_object() ? "" : "the content is no JSON object";
  }
  const Json* named = Member(format, "json_schema");
  const Json* schema = named == nullptr ? nullptr : Member(*named, "schema");
  const std::string why = schema == nullptr ? "" : WhyUnfit(*schema, value.value());
  return why.empty() ? "" : "the content is " + why;
}

bool SameArguments(const std::string& left, const std::string& right) {
  const Result<Json> a = ParseJson(left), b = ParseJson(right);
  if (!a.ok() || !b.ok()) return left == right;
  return JsonEqual(a.value(), b.value());
}

}  // namespace baltoro
