#include <fmt/format.h>

#include <memory>

#include "base/json.h"
#include "base/json_scanner.h"
#include "counted/work_case.h"

namespace baltoro::work {
namespace {

// Read into a tree, printed, and thrown away.
WorkCase ReadCase(std::string name, size_t size, std::function<std::string(size_t)> write) {
  return {std::move(name), size, [write](size_t n) {
            return [text = write(n)] {
              const Json json = Must(ParseJson(text));
              BT_CHECK(!json.dump().empty());
            };
          }};
}

std::string Object(size_t keys) {
  return '{' + Listed(keys, [](size_t i) { return fmt::format(R"("key {}":{})", i, i); }) + '}';
}

// `lists` lists, each as deep as a text may be.
std::string DeepLists(size_t lists) {
  const std::string deep = Times(60, "[") + Times(60, "]");
  return '[' + Listed(lists, [&](size_t) { return deep; }) + ']';
}

Work FindAndRemoveKeys(size_t size) {
  return [text = Object(size), size] {
    Json json = Must(ParseJson(text));
    for (size_t i = 0; i < size; ++i) BT_CHECK(json.contains(fmt::format("key {}", i)));
    for (size_t i = 0; i < size; ++i) json[fmt::format("more {}", i)] = i;
    Json copy = json;
    BT_CHECK(copy == json);
  };
}

Work OneDeepList(size_t size) {
  return [text = Times(size, R"({"a":[)") + Times(size, "]}"), size] {
    const auto json = ParseJson(text, {.depth = static_cast<int>(2 * size)});
    BT_CHECK(json.ok());
    const auto refused = ParseJson(text);
    BT_CHECK(!refused.ok());
  };
}

Work Scan(size_t size) {
  return [text = Object(size), size] {
    JsonScanner scanner(text);
    BT_CHECK(scanner.BeginObject());
    std::string key;
    size_t keys = 0;
    for (int64_t value = 0; scanner.NextKey(key); ++keys) BT_CHECK(scanner.Natural(value));
    BT_CHECK(scanner.End() && keys == size);
  };
}

Work WriteStrings(size_t size) {
  return [text = Times(size, "a\"\xC3\xA9\n\x80")] {
    std::string out;
    AppendJsonString(out, text);
    BT_CHECK(out.size() > text.size());
  };
}

}  // namespace

std::vector<WorkCase> JsonCases() {
  return {
      ReadCase("json_keys", 1000, Object),
      ReadCase("json_deep_lists", 300, DeepLists),
      ReadCase("json_string", 20'000,
               [](size_t n) { return '"' + Times(n, "a") + Times(n / 8, R"(\u00e9\n)") + '"'; }),
      ReadCase("json_numbers", 1000,
               [](size_t n) {
                 return '[' + Listed(n, [](size_t i) { return fmt::format("{}.5e3", i); }) + ']';
               }),
      {"json_find_keys", 1000, FindAndRemoveKeys},
      {"json_one_deep", 500, OneDeepList},
      {"json_scanner", 1000, Scan},
      {"json_write_string", 5000, WriteStrings},
  };
}

}  // namespace baltoro::work
