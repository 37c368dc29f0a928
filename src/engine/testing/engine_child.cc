// The program that the process tests start: an engine with scripted constraints.

#include <cstdlib>

#include "base/log.h"
#include "engine/engine_process.h"
#include "engine/testing/scripted_constraint.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  baltoro::InitLog("EngineCore", baltoro::LogLevel::kWarning);
  return baltoro::RunEngineProcess(
      std::atoi(argv[3]), baltoro::test::Hand(std::make_shared<baltoro::test::ScriptedFactory>()));
}
