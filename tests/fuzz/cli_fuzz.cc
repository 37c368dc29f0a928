// The command line and the file of --config, on arbitrary bytes: words are separated by NUL, and
// what stands before the first '\1' is also read as a YAML file. Never crashes, and a refusal
// always says something.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <variant>
#include <vector>

#include "flags/command_line.h"
#include "flags/config_file.h"
#include "flags/parse.h"
#include "flags/serve_flags.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> args;
  for (std::string_view word : baltoro::SplitText(input, '\0')) {
    // A file named by the input would make the run depend on this machine.
    if (word.find(".y") == std::string_view::npos) args.emplace_back(word);
  }
  const baltoro::Command command = baltoro::ParseCommandLine(args, {{"VLLM_LOGGING_LEVEL", input}});
  const auto* ending = std::get_if<baltoro::Ending>(&command);
  if (ending != nullptr && ending->out.empty() && ending->err.empty()) std::abort();

  const baltoro::FlagTable table = baltoro::ServeFlags();
  const std::string yaml = input.substr(0, input.find('\1'));
  const auto file = baltoro::ParseConfigText(table, yaml, "f.yaml");
  if (file.ok()) {
    (void)baltoro::ParseFlags(table, file.value().args);
  } else if (file.status().message().empty()) {
    std::abort();
  }
  return 0;
}
