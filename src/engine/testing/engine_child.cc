// The program that the process tests start: an engine and nothing else.

#include <cstdlib>

#include "base/log.h"
#include "engine/engine_process.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  baltoro::InitLog("EngineCore", baltoro::LogLevel::kWarning);
  return baltoro::RunEngineProcess(std::atoi(argv[3]));
}
