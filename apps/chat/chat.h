#pragma once

#include "flags/client_options.h"

namespace baltoro {

// `baltoro chat`: one answer, or a conversation in the terminal. Returns the exit code.
int RunChat(const ChatOptions& options);

}  // namespace baltoro
