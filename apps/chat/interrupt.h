#pragma once

// Ctrl-C while an answer comes: the answer ends and not the program.

namespace baltoro {

// From here on SIGINT ends no program, but is remembered, and makes interrupt_fd() readable.
void CatchInterrupts();
// Forgets one that came before.
void ForgetInterrupt();
bool Interrupted();
int interrupt_fd();  // -1 before CatchInterrupts

}  // namespace baltoro
