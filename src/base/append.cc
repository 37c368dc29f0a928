#include "base/append.h"

#include <iterator>

namespace baltoro {

void AppendArguments(std::string& out, fmt::string_view format, fmt::format_args values) {
  fmt::vformat_to(std::back_inserter(out), format, values);
}

}  // namespace baltoro
