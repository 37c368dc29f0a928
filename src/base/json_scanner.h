#pragma once

// Reads a JSON text from left to right without building a tree: for texts of tens of megabytes
// whose shape is known, such as the header of a file of weights. As strict as ParseJson (UTF-8
// included); what is skipped is checked as JSON, but for repeated keys.
//
// Every function returns false on the first thing amiss; from then on all do, and status() says
// why. One thread; `text` must outlive the scanner.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace baltoro {

class JsonScanner {
 public:
  static constexpr int kDepthMax = 64;

  explicit JsonScanner(std::string_view text);

  // The first character of the next value; 0 at the end of the text.
  char Peek();

  // Containers: Begin, then Next before every member, which says false at the end of the container
  // as well; ok() then tells the end from an error.
  bool BeginObject() { return Open('{'); }
  bool NextKey(std::string& key);
  bool BeginArray() { return Open('['); }
  bool NextElement();

  // Values.
  bool String(std::string& out);
  // An integer in [0, 2^63), written without fraction and exponent. Anything else, of which nothing
  // is read, gives false without an error.
  bool Natural(int64_t& out);
  bool Skip();

  // Only white space is left.
  bool End();

  bool ok() const { return error_ == nullptr; }
  Status status() const;

 private:
  bool Open(char bracket);
  // Steps to the next member of the innermost container; false at its end.
  bool NextMember(char close);
  bool Fail(const char* error);
  bool FailHere() { return Fail("not valid JSON"); }
  void SkipSpace();
  bool Literal(std::string_view word);
  bool SkipNumber();
  bool Escape(std::string& out);
  bool HexUnit(uint32_t& unit);
  bool InObject() const { return objects_ >> (depth_ - 1) & 1; }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  uint64_t objects_ = 0;  // bit d: container d is an object
  bool first_ = false;    // no member of the innermost container was read yet
  const char* error_ = nullptr;
  std::string skipped_;
};

}  // namespace baltoro
