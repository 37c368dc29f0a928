// The program that the process tests start: an engine with scripted constraints, or one that ends
// while it loads, if its tokenizer_dir says so.

#include <cstdlib>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "device/buffer.h"
#include "engine/engine_process.h"
#include "engine/testing/scripted_constraint.h"

namespace {

void EndIfPlanted(const std::string& tokenizer_dir) {
  BT_CHECK(tokenizer_dir != "planted-check");
  if (tokenizer_dir == "planted-memory") baltoro::Arena().Allocate(size_t{1} << 60);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  baltoro::InitLog("EngineCore", baltoro::LogLevel::kWarning);
  const auto hand = baltoro::test::Hand(std::make_shared<baltoro::test::ScriptedFactory>());
  return baltoro::RunEngineProcess(std::atoi(argv[3]),
                                   [&](const std::string& tokenizer_dir, int32_t vocab_size) {
                                     EndIfPlanted(tokenizer_dir);
                                     return hand(tokenizer_dir, vocab_size);
                                   });
}
