#pragma once

// W3C Trace Context: which trace a request is a part of, so that its lines in the log can be found
// from there. Nothing is recorded or sent on. Any thread.

#include <string_view>

namespace baltoro {

// The trace id of a `traceparent` header, 32 lower-case hexadecimal digits that point into it; ""
// where the header is not of the standard's form, which makes a request be served without one.
std::string_view TraceIdOf(std::string_view traceparent);

}  // namespace baltoro
