// Runs a fuzz target over the files of a folder and over a few thousand inputs made from a fixed
// seed, so that every ordinary test run exercises the target and its assertions.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kRandomInputs = 2000;

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::vector<std::string> ReadCorpus(const char* folder) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    std::ifstream file(entry.path(), std::ios::binary);
    out.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> corpus =
      argc > 1 ? ReadCorpus(argv[1]) : std::vector<std::string>();
  if (argc > 1 && corpus.empty()) {
    std::fprintf(stderr, "no kept inputs in %s\n", argv[1]);
    return 1;
  }
  for (const std::string& input : corpus) Run(input);

  std::mt19937 random(1);
  for (int i = 0; i < kRandomInputs; ++i) {
    std::string input = corpus.empty() ? std::string() : corpus[random() % corpus.size()];
    if (input.size() > 4096) input.resize(4096);
    const size_t changes = 1 + random() % 16;
    for (size_t j = 0; j < changes; ++j) {
      const auto byte = static_cast<char>(random());
      const size_t at = input.empty() ? 0 : random() % input.size();
      if (input.empty() || random() % 3 == 0) {
        input.insert(at, 1, byte);
      } else if (random() % 2 == 0) {
        input.erase(at, 1 + random() % 8);
      } else {
        input[at] = byte;
      }
    }
    Run(input);
  }
  std::printf("%zu kept inputs and %d made ones\n", corpus.size(), kRandomInputs);
  return 0;
}
