// Messages of a chat: the shapes that their parts and calls may have, and which field a refusal
// names.

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/chat_request.h"

namespace baltoro {
namespace {

std::optional<ApiError> Read(const Json& messages, ChatRequest& out) {
  GenerationLimits limits;
  limits.vocab_size = 2304;
  limits.max_model_len = 4096;
  return ReadChatRequest({{"messages", messages}}, limits, Json(), out);
}

// "" where they are taken.
std::string Refused(const Json& messages) {
  ChatRequest out;
  const auto error = Read(messages, out);
  if (!error) return "";
  const std::string param = error->param.value_or("(none)");
  EXPECT_TRUE(error->message.starts_with(param + ": ")) << error->message;
  return param;
}

TEST(MessagePlacesTest, APartIsNamedWithTheFieldThatIsWrong) {
  const auto refused = [](const Json& part) {
    const Json text = {{"type", "text"}, {"text", "hi"}};
    return Refused({{{"role", "system"}, {"content", "x"}},
                    {{"role", "user"}, {"content", Json::array({text, part})}}});
  };
  const std::string part = "messages[1].content[1]";
  EXPECT_EQ(refused("hi"), "");
  EXPECT_EQ(refused(1), part);
  EXPECT_EQ(refused({{"type", "text"}}), part);
  EXPECT_EQ(refused({{"type", "text"}, {"text", 1}}), part + ".text");
  EXPECT_EQ(refused({{"type", "input_image"}, {"file_id", "x"}}), part + ".file_id");
  EXPECT_EQ(refused({{"type", "image_url"}, {"image_url", {{"url", 1}}}}), part + ".image_url.url");
  EXPECT_EQ(refused({{"type", "image_url"}, {"image_url", {{"url", "data:"}, {"detail", 1}}}}),
            part + ".image_url.detail");
  EXPECT_EQ(refused({{"type", "input_image"}, {"image_url", "data:"}, {"detail", "finest"}}),
            part + ".detail");
}

TEST(MessagePlacesTest, CallsOfTheHistoryTakeSeveralShapes) {
  const auto messages = [](const Json& call) {
    return Json::array({{{"role", "assistant"}, {"content", ""}, {"tool_calls", {call}}}});
  };
  const auto arguments = [&](const Json& call) {
    ChatRequest out;
    EXPECT_FALSE(Read(messages(call), out));
    return out.messages[0]["tool_calls"][0]["function"]["arguments"];
  };
  EXPECT_EQ(arguments({{"id", "x"}, {"function", {{"name", "f"}, {"arguments", "{\"a\": 1}"}}}}),
            "{\"a\": 1}");
  EXPECT_EQ(arguments({{"id", "x"}, {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}),
            Json({{"a", 1}}));
  EXPECT_EQ(arguments({{"function", {{"name", "f"}}}}), "{}");
  const auto refused = [&](const Json& call) { return Refused(messages(call)); };
  const std::string call = "messages[0].tool_calls[0]";
  EXPECT_EQ(refused({{"id", "x"}, {"function", {{"name", "f"}, {"arguments", 1}}}}),
            call + ".function.arguments");
  EXPECT_EQ(refused({{"id", 1}, {"function", {{"name", "f"}}}}), call + ".id");
  EXPECT_EQ(refused({{"id", "x"}, {"function", {{"name", 1}}}}), call + ".function.name");
  EXPECT_EQ(refused({{"id", "x"}}), call);
}

}  // namespace
}  // namespace baltoro
