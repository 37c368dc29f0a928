#include "engine_main.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "base/log_format.h"
#include "engine/engine_process.h"
#include "grammar/constraint_factory.h"

namespace baltoro {

std::shared_ptr<ConstraintFactory> MakeConstraints(const std::string& tokenizer_dir,
                                                   int32_t vocab_size) {
  if (tokenizer_dir.empty()) return nullptr;
  return MakeConstraintFactory(tokenizer_dir, vocab_size);
}

int RunEngineMain(const std::vector<std::string>& args) {
  int fd = -1;
  std::string name = "EngineCore";
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  for (size_t i = 1; i + 1 < args.size(); ++i) {
    const std::string& value = args[i + 1];
    if (args[i] == "--fd") std::from_chars(value.data(), value.data() + value.size(), fd);
    if (args[i] == "--replica") name = "EngineCore_DP" + value;
    if (args[i] == "--visible-devices") setenv("CUDA_VISIBLE_DEVICES", value.c_str(), 1);
    if (args[i] == "--log-level") ParseLogLevel(value, level);
    if (args[i] == "--log-format" && value == "json") format = LogFormat::kJson;
  }
  if (fd < 0) {
    std::fputs("baltoro engine is started by baltoro serve and needs its socket (--fd N)\n",
               stderr);
    return 2;
  }
  InitLog(name, level);
  SetLogFormat(format);
  return RunEngineProcess(fd, MakeConstraints);
}

}  // namespace baltoro
