#pragma once

namespace baltoro {

// The first argument of the processes in which the door decodes pictures.
inline constexpr const char* kPictureSubcommand = "pictures";

// Such a process: takes pictures from the door through the inherited socket until that is closed.
int RunPictureMain();

}  // namespace baltoro
