#include "doctor.h"

#include <cstdio>

#include "doctor/gather.h"
#include "doctor/judge.h"

namespace baltoro {

int RunDoctor(const DoctorCommand& command, const std::string& program) {
  const std::vector<DoctorLine> lines = Judge(GatherFacts({.model = command.model,
                                                           .sums = command.sums,
                                                           .port = command.port,
                                                           .master_port = command.master_port,
                                                           .replica_port = command.replica_port,
                                                           .program = program}));
  const std::string text =
      command.json ? DoctorJson(lines).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                   : DoctorText(lines);
  std::fputs(text.c_str(), stdout);
  return WorstOf(lines) == DoctorVerdict::kBroken ? 1 : 0;
}

}  // namespace baltoro
