#include "engine_main.h"

#include <charconv>
#include <cstdio>

#include "base/log.h"
#include "engine/engine_process.h"

namespace baltoro {

int RunEngineMain(const std::vector<std::string>& args) {
  int fd = -1;
  for (size_t i = 1; i + 1 < args.size(); ++i) {
    if (args[i] == "--fd") std::from_chars(args[i + 1].data(), args[i + 1].data() + args[i + 1].size(), fd);
  }
  if (fd < 0) {
    std::fputs("baltoro engine is started by baltoro serve and needs its socket (--fd N)\n", stderr);
    return 2;
  }
  InitLog("EngineCore", LogLevel::kInfo);
  return RunEngineProcess(fd);
}

}  // namespace baltoro
