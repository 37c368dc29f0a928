#pragma once

// Files of a conversation, which are nobody else's business: made with mode 0600. Errors name the
// path and the reason. Any thread.

#include <string>
#include <string_view>

#include "base/status.h"

namespace baltoro {

// Adds to the end of a regular file, which is made where there is none.
Status AppendPrivate(const std::string& path, std::string_view text);
// Makes a file; kInvalidArgument where anything has this name.
Status CreatePrivate(const std::string& path, std::string_view text);
// Puts `text` in the place of a file: at every moment one or the other is there whole.
Status ReplacePrivate(const std::string& path, std::string_view text);

}  // namespace baltoro
