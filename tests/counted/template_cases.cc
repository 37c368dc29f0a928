#include <fmt/format.h>

#include <memory>

#include "base/json.h"
#include "counted/work_case.h"
#include "text/chat_template.h"
#include "text/tool_call_ids.h"

namespace baltoro::work {
namespace {

const ChatTemplate& Template() {
  static const std::unique_ptr<ChatTemplate> kTemplate =
      Must(ChatTemplate::LoadFromDir(BT_POCKET_MODEL));
  return *kTemplate;
}

Json Message(std::string_view role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

Work Render(Json messages, Json tools = nullptr) {
  return [messages = std::move(messages), tools = std::move(tools)] {
    ChatTemplateInput input;
    input.messages = &messages;
    input.tools = tools.is_null() ? nullptr : &tools;
    BT_CHECK(!Must(Template().Render(input)).empty());
  };
}

Json Conversation(size_t size) {
  Json messages = Json::array();
  for (size_t i = 0; i < size; ++i) {
    messages.push_back(Message("user", "What is the weather like?"));
    messages.push_back(Message("assistant", "It rains."));
  }
  return messages;
}

// A call and its result, again and again.
Json Calls(size_t size, const std::function<std::string(size_t)>& id) {
  Json messages = {Message("user", "Do it.")};
  for (size_t i = 0; i < size; ++i) {
    Json asking = Message("assistant", "");
    asking["reasoning_content"] = "This needs the tool.";
    asking["tool_calls"] = {
        {{"id", id(i)},
         {"type", "function"},
         {"function", {{"name", "look"}, {"arguments", {{"at", i}, {"how", "closely"}}}}}}};
    messages.push_back(asking);
    Json result = Message("tool", "nothing there");
    result["tool_call_id"] = id(i);
    messages.push_back(result);
  }
  return messages;
}

// As many calls in one message, and their results in the opposite order.
Json CallsOfOneMessage(size_t size, bool with_ids) {
  Json asking = Message("assistant", "");
  Json messages = {Message("user", "Do it.")};
  asking["tool_calls"] = Json::array();
  for (size_t i = 0; i < size; ++i) {
    asking["tool_calls"].push_back({{"id", fmt::format("call_{}", i)},
                                    {"type", "function"},
                                    {"function", {{"name", "look"}, {"arguments", "{}"}}}});
  }
  messages.push_back(asking);
  for (size_t i = size; i > 0; --i) {
    Json result = Message("tool", "nothing there");
    if (with_ids) result["tool_call_id"] = fmt::format("call_{}", i - 1);
    messages.push_back(result);
  }
  return messages;
}

Json Parts(size_t size) {
  Json message = Message("user", "");
  message["content"] = Json::array();
  for (size_t i = 0; i < size; ++i) {
    message["content"].push_back({{"type", "text"}, {"text", "a part of it"}});
  }
  return {message};
}

Json Parameters(size_t properties) {
  Json out = {{"type", "object"}, {"properties", Json::object()}};
  for (size_t i = 0; i < properties; ++i) {
    out["properties"][fmt::format("property_{}", i)] = {
        {"type", "string"}, {"description", "What it is."}, {"enum", {"a", "b"}}};
  }
  return out;
}

Json Tools(size_t tools, size_t properties) {
  Json out = Json::array();
  for (size_t i = 0; i < tools; ++i) {
    out.push_back({{"type", "function"},
                   {"function",
                    {{"name", fmt::format("tool_{}", i)},
                     {"description", "Does something."},
                     {"parameters", Parameters(properties)}}}});
  }
  return out;
}

WorkCase IdsCase(std::string name, size_t size, std::function<Json(size_t)> write) {
  return {std::move(name), size, [write](size_t n) {
            return [messages = std::make_shared<Json>(write(n)), n] {
              BT_CHECK(NormaliseToolCallIds(*messages) == static_cast<int64_t>(n));
            };
          }};
}

// A template of its own, with what the pocket one has no use for.
Work RenderOwn(size_t size, const std::string& source) {
  const std::shared_ptr<ChatTemplate> own = Must(ChatTemplate::Parse(source, "own"));
  return [own, messages = Conversation(size)] {
    ChatTemplateInput input;
    input.messages = &messages;
    BT_CHECK(!Must(own->Render(input)).empty());
  };
}

// Two dicts of a client's, alike but for the order of their keys.
Work CompareDicts(size_t size) {
  static const std::shared_ptr<ChatTemplate> kOwn =
      Must(ChatTemplate::Parse("{{ messages[0].a == messages[1].a }}", "own"));
  Json messages = {Message("user", ""), Message("user", "")};
  for (size_t i = 0; i < size; ++i) {
    messages[0]["a"][fmt::format("key_{:06}", i)] = i;
    messages[1]["a"][fmt::format("key_{:06}", size - 1 - i)] = size - 1 - i;
  }
  return [messages = std::move(messages)] {
    ChatTemplateInput input;
    input.messages = &messages;
    BT_CHECK(Must(kOwn->Render(input)).front().text == "True");
  };
}

constexpr char kJoin[] =
    "{%- set parts = namespace(list=[]) -%}"
    "{%- for m in messages -%}{{ m.content | trim | upper }}{{ m | tojson }}{%- endfor -%}"
    "{{ messages | map(attribute='content') | join(', ') | replace('a', 'b') }}"
    "{{ messages[::-1] | length }}{{ (messages | map(attribute='role') | list)[-1] }}";

}  // namespace

std::vector<WorkCase> TemplateCases() {
  const auto numbered = [](size_t i) { return fmt::format("functions.look:{}", i); };
  const auto same = [](size_t) { return std::string("call"); };
  return {
      {"template_messages", 50, [](size_t n) { return Render(Conversation(n)); }},
      {"template_long_message", 20'000,
       [](size_t n) { return Render({Message("user", Times(n, "text "))}); }},
      {"template_parts", 200, [](size_t n) { return Render(Parts(n)); }},
      {"template_calls", 20, [=](size_t n) { return Render(Calls(n, numbered)); }},
      {"template_tools", 20, [](size_t n) { return Render(Conversation(1), Tools(n, 3)); }},
      {"template_properties", 50, [](size_t n) { return Render(Conversation(1), Tools(1, n)); }},
      {"template_compare_dicts", 500, CompareDicts},
      {"template_filters", 100, [](size_t n) { return RenderOwn(n, kJoin); }},
      IdsCase("call_ids", 400, [=](size_t n) { return Calls(n, numbered); }),
      IdsCase("call_ids_all_the_same", 400, [=](size_t n) { return Calls(n, same); }),
      IdsCase("call_ids_of_one_message", 400, [](size_t n) { return CallsOfOneMessage(n, true); }),
      IdsCase("call_ids_absent", 400, [](size_t n) { return CallsOfOneMessage(n, false); }),
  };
}

}  // namespace baltoro::work
