#pragma once

// From the text of a regular expression to Regex's tree. Used by regex.cc alone.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/regex.h"

namespace baltoro {

class RegexParser {
 public:
  // Fills `out`, whose variants_ are made too.
  static Status Parse(std::string_view pattern, Regex& out);

 private:
  explicit RegexParser(Regex& out) : out_(out) {}

  // Each returns false after setting error_.
  bool Alternatives(uint32_t& node, int depth);
  bool Terms(uint32_t& node, int depth);
  bool Atom(uint32_t& node, int depth);
  bool Group(uint32_t& node, int depth);
  bool Quantified(uint32_t& node);
  bool Bounds(int64_t& min, int64_t& max);
  bool Class(uint32_t& node);
  bool ClassItem(Regex::ClassSet& set, bool& single, char32_t& code);
  bool Escape(bool in_class, Regex::ClassSet& set, bool& single, char32_t& code);
  bool Hex(size_t digits, char32_t& code);
  bool CodeEscape(char32_t& code);
  bool Split(uint32_t node, std::vector<Regex::Variant>& out);
  bool SplitSequence(uint32_t node, std::vector<Regex::Variant>& out);

  // The first anchor below `node`, which has one.
  size_t AnchorPlace(uint32_t node) const;

  uint32_t Add(Regex::Node node);
  uint32_t AddClass(Regex::ClassSet set);
  bool Fail(std::string what, size_t at);       // a regular expression that is not for here
  bool Malformed(std::string what, size_t at);  // nor anywhere else
  bool AtEnd() const { return at_ == text_.size(); }
  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0';
  }
  bool Take(char32_t code);
  bool Looking(std::u32string_view ahead) const;

  Regex& out_;
  std::u32string text_;
  size_t at_ = 0;
  Status error_;
};

}  // namespace baltoro
