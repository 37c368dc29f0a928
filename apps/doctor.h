#pragma once

#include <string>

#include "flags/doctor_options.h"

namespace baltoro {

// Prints what this machine has, and what is wrong with it. The exit code: 0, or 1 where something
// is broken.
int RunDoctor(const DoctorCommand& command, const std::string& program);

}  // namespace baltoro
