#pragma once

// What an answer says about itself before any of its bytes is written: pure checks.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "pull/http_session.h"

namespace baltoro {

// "bytes 0-99/1000" has begin 0 and total 1000; -1 where it does not say.
struct ContentRange {
  int64_t begin = -1, total = -1;
};
ContentRange ParseContentRange(std::string_view text);

// The sum by which the answer names its content; empty where it has none.
const std::string& EtagOf(const HttpHead& head);

struct ExpectedAnswer {
  std::string path;
  int64_t bytes = 0;      // of the whole file, as the listing says
  std::string etag = {};  // of the answers before; empty: there was none
  bool ranged = false;    // a range was asked for
  int64_t begin = 0;      // of that
};

struct HeadCheck {
  Status problem;     // kUnavailable: another attempt may mend it
  bool anew = false;  // the file must begin anew, for `problem`
};

// Of an answer of 2xx.
HeadCheck CheckHead(const HttpHead& head, const ExpectedAnswer& expected);

}  // namespace baltoro
