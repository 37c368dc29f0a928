#include "server/docs_page.h"

#include <fmt/format.h>

#include <cctype>

#include "base/check.h"
#include "base/json.h"
#include "server/openapi.h"

namespace baltoro {
namespace {

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// What "#/components/..." leads to.
const Json& Resolved(const Json& document, const Json& value) {
  const auto reference = value.find("$ref");
  if (reference == value.end()) return value;
  return document.at(Json::json_pointer(reference->get<std::string>().substr(1)));
}

std::string Plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string KindOf(const Json& field) {
  const auto type = field.find("type");
  std::string out;
  if (type == field.end()) {
    for (const char* key : {"const", "enum"}) {
      if (field.contains(key)) out = field.at(key).dump();
    }
  } else if (type->is_string()) {
    out = type->get<std::string>();
  } else {
    for (const Json& one : *type) out += (out.empty() ? "" : " or ") + one.get<std::string>();
  }
  for (const auto& [key, name] : {std::pair{"minimum", "from"},
                                  {"exclusiveMinimum", "above"},
                                  {"maximum", "to"},
                                  {"default", "default"}}) {
    if (field.contains(key)) out += fmt::format(", {} {}", name, Plain(field.at(key)));
  }
  return out;
}

// The schema's own fields first, then those that it shares with others.
void AppendFields(const Json& document, const Json& schema, std::string& out) {
  if (const auto own = schema.find("properties"); own != schema.end()) {
    for (const auto& [name, field] : own->items()) {
      const Json& known = Resolved(document, field);
      out += fmt::format("<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n", Escaped(name),
                         Escaped(KindOf(known)), Escaped(known.value("description", "")));
    }
  }
  if (!schema.contains("allOf")) return;
  for (const Json& part : schema.at("allOf")) AppendFields(document, Resolved(document, part), out);
}

// "/v1/models/{model}" -> "/v1/models/$MODEL"
std::string ShellPath(std::string_view path) {
  std::string out;
  bool argument = false;
  for (const char c : path) {
    if (c == '{' || c == '}') {
      argument = c == '{';
      if (argument) out += '$';
    } else {
      out += argument ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    }
  }
  return out;
}

void AppendRoute(const Json& document,
                 const DocsOptions& options,
                 const DocsRoute& route,
                 std::string& out) {
  std::string method(route.method);
  for (char& c : method) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const Json& operation = document.at("paths").at(std::string(route.path)).at(method);
  out += fmt::format("<section><h2><b>{}</b> <code>{}</code></h2>\n<p>{}.{}</p>\n", route.method,
                     Escaped(route.path), Escaped(operation.value("summary", "")),
                     options.keys && !route.needs_key ? " Needs no key." : "");
  std::string curl = "curl -sS";
  if (route.method != "GET" && route.method != "POST") curl += fmt::format(" -X {}", route.method);
  curl += fmt::format(" \"$URL{}\"", ShellPath(route.path));
  if (options.keys && route.needs_key) curl += " \\\n  -H \"Authorization: Bearer $KEY\"";
  std::string fields;
  if (operation.contains("requestBody")) {
    const Json& content =
        Resolved(document, operation.at("requestBody")).at("content").at("application/json");
    curl += fmt::format(" \\\n  -H 'Content-Type: application/json' \\\n  -d '{}'",
                        content.at("example").dump());
    AppendFields(document, Resolved(document, content.at("schema")), fields);
  } else if (route.method == "POST") {
    curl += " -d ''";
  }
  out += fmt::format("<pre><code>{}</code></pre>\n", Escaped(curl));
  if (!fields.empty()) {
    out += fmt::format(
        "<details><summary>Fields of the body</summary><div class=\"wide\"><table>\n{}</table>"
        "</div></details>\n",
        fields);
  }
  out += "</section>\n";
}

}  // namespace

std::string DocsPage(const DocsOptions& options) {
  const Result<Json> document = ParseJson(OpenApiDocument(options.version));
  BT_CHECK(document.ok());
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>Baltoro: HTTP API</title><link rel=\"icon\" href=\"page/icon.svg\">"
      "<link rel=\"stylesheet\" href=\"page/style.css\"></head>\n<body class=\"docs\"><main>\n"
      "<h1>HTTP API</h1>\n<p>Every route of this server, Baltoro {}. The whole description, with "
      "answers and limits, is <a href=\"openapi.json\">openapi.json</a> (OpenAPI 3.1). The "
      "commands below need:</p>\n<pre><code>URL={}{}</code></pre>\n",
      Escaped(options.version), Escaped(options.address),
      options.keys ? "\nKEY=...   # one of the server's API keys" : "");
  for (const DocsRoute& route : options.routes) {
    AppendRoute(document.value(), options, route, out);
  }
  return out + "</main></body></html>\n";
}

}  // namespace baltoro
