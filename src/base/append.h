#pragma once

// Appends formatted text to a string. fmt::format_to does the same, but compiles fmt's writer anew
// in every file that calls it: seven seconds under sanitizers.

#include <fmt/format.h>

#include <string>

namespace baltoro {

void AppendArguments(std::string& out, fmt::string_view format, fmt::format_args values);

template <typename... T>
void AppendFormatted(std::string& out, fmt::format_string<T...> format, T&&... values) {
  AppendArguments(out, format, fmt::make_format_args(values...));
}

}  // namespace baltoro
