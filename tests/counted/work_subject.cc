// What tests/counted/work.py runs under callgrind: the named cases, each at three sizes, with the
// counts of each size dumped under "NAME SIZE". NAME=SIZE begins at another size. Without names it
// prints those of all cases.
//
// All sizes of many cases are one process, because valgrind needs a second to start. The first time
// is done for nothing: what is made once and kept (tables, symbols) belongs to no size.

#include <fmt/format.h>
#include <valgrind/callgrind.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "counted/work_case.h"

namespace baltoro::work {

const Tokenizer& Words() {
  static const std::unique_ptr<Tokenizer> kTokenizer = Must(Tokenizer::Load(BT_POCKET_MODEL));
  return *kTokenizer;
}

namespace {

std::vector<WorkCase> AllCases() {
  std::vector<WorkCase> all;
  for (const auto& some :
       {JsonCases(), NetCases(), TokenizerCases(), TemplateCases(), AnswerCases(), GrammarCases(),
        RequestCases(), PullCases(), PlantedCases()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void Measure(const WorkCase& subject) {
  subject.prepare(subject.size)();
  for (const size_t size : {subject.size, 2 * subject.size, 4 * subject.size}) {
    const Work work = subject.prepare(size);
    CALLGRIND_TOGGLE_COLLECT;
    work();
    CALLGRIND_TOGGLE_COLLECT;
    const std::string label = fmt::format("{} {}", subject.name, size);
    CALLGRIND_DUMP_STATS_AT(label.c_str());
  }
}

int Main(const std::vector<std::string>& names) {
  const std::vector<WorkCase> all = AllCases();
  if (names.empty()) {
    for (const WorkCase& one : all) fmt::print("{}\n", one.name);
  }
  for (const std::string& argument : names) {
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string name = argument.substr(0, equals);
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const WorkCase& one) { return one.name == name; });
    if (found == all.end()) {
      fmt::print(stderr, "there is no case {}\n", name);
      return 2;
    }
    WorkCase subject = *found;
    if (equals < argument.size()) subject.size = std::stoul(argument.substr(equals + 1));
    Measure(subject);
  }
  return 0;
}

}  // namespace
}  // namespace baltoro::work

int main(int argc, char** argv) {
  return baltoro::work::Main({argv + 1, argv + argc});
}
