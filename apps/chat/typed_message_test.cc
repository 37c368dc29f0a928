#include "chat/typed_message.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

// The message of these lines; "(more)" before it where it is not complete.
std::string MessageOf(std::initializer_list<const char*> lines) {
  TypedMessage message;
  for (const char* line : lines) {
    EXPECT_FALSE(message.complete());
    EXPECT_TRUE(message.Add(line).ok());
  }
  const std::string begin = message.complete() ? "" : "(more)";
  return begin + message.Take();
}

TEST(TypedMessageTest, ALineIsAMessage) {
  EXPECT_EQ(MessageOf({"What is 27 + 58?"}), "What is 27 + 58?");
  EXPECT_EQ(MessageOf({""}), "");
}

TEST(TypedMessageTest, ABackslashGoesOnWithTheNextLine) {
  EXPECT_EQ(MessageOf({"one\\", "two\\", "three"}), "one\ntwo\nthree");
  EXPECT_EQ(MessageOf({"one\\"}), "(more)one");
}

TEST(TypedMessageTest, ABlockIsTakenAsItIs) {
  EXPECT_EQ(MessageOf({"\"\"\"", "/quit\\", "", "  end", "\"\"\""}), "/quit\\\n\n  end");
  EXPECT_EQ(MessageOf({"\"\"\"a \"\" b\"\"\""}), "a \"\" b");
  EXPECT_EQ(MessageOf({"\"\"\"first", "last\"\"\" "}), "first\nlast");
  EXPECT_EQ(MessageOf({"\"\"\"first", "last"}), "(more)first\nlast");
}

TEST(TypedMessageTest, AMessageHasABound) {
  TypedMessage message;
  ASSERT_TRUE(message.Add("\"\"\"" + std::string(TypedMessage::kBytesMax - 10, 'x')).ok());
  EXPECT_FALSE(message.Add("0123456789x").ok());
  EXPECT_FALSE(message.begun());
}

TEST(ChatCommandTest, ACommandHasWhatItTakes) {
  const Result<ChatCommand> system = ParseChatCommand("/system  Be\nbrief. ");
  ASSERT_TRUE(system.ok());
  EXPECT_EQ(system.value().verb, ChatVerb::kSystem);
  EXPECT_EQ(system.value().argument, "Be\nbrief.");
  EXPECT_TRUE(ParseChatCommand("/thinking off").ok());
  EXPECT_TRUE(ParseChatCommand("/quit ").ok());
  EXPECT_EQ(ParseChatCommand("/image  my cat.png ").value().argument, "my cat.png");
  EXPECT_EQ(ParseChatCommand("/image").value().argument, "");
}

TEST(ChatCommandTest, AWrongOneSaysWhatIsMeant) {
  EXPECT_EQ(ParseChatCommand("/thinking maybe").status().message(),
            "/thinking on, or /thinking off");
  EXPECT_EQ(ParseChatCommand("/save").status().message(), "/save: the name of a file is missing");
  EXPECT_EQ(ParseChatCommand("/clear all").status().message(), "/clear takes nothing after it");
  EXPECT_NE(ParseChatCommand("/new").status().message().find("/new is no command"),
            std::string::npos);
}

}  // namespace
}  // namespace baltoro
