// Speed of Encode and of streaming decode with the published vocabulary, on one core.
//
//   tokenizer_bench
//
// English is this machine's licence texts, code its C++ headers. Chinese is words of the vocabulary
// with punctuation between; a word's frequency falls with its id as Zipf's law has it. The runs are
// single pieces, the worst case of the merging: compare a length with the next for linearity.
// Without the vocabulary (support.h) nothing runs.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/utf8.h"
#include "support/support.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace baltoro {
namespace {

constexpr size_t kTextBytes = size_t{4} << 20;

// Files of a folder, in order of name, repeated up to kTextBytes.
std::string ReadFolder(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file()) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const std::string& path : paths) {
    if (text.size() >= kTextBytes) break;
    auto content = ReadFile(path);
    if (content.ok()) text += content.value();
  }
  if (text.empty()) return text;
  while (text.size() < kTextBytes) text += text;
  text.resize(kTextBytes);
  return Utf8Sanitize(text);
}

std::string MakeChinese(const Tokenizer& tokenizer) {
  std::vector<std::string_view> words;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    char32_t code = 0;
    if (IsValidUtf8(bytes) && Utf8Decode(bytes, code) > 0 && code >= 0x4E00 && code <= 0x9FFF) {
      words.push_back(bytes);
    }
  }
  std::mt19937 random(1);
  std::string text;
  while (text.size() < kTextBytes) {
    for (size_t i = 2 + random() % 7; i > 0; --i) {
      std::uniform_real_distribution<double> log_rank(0, std::log(words.size()));
      text += words[static_cast<size_t>(std::exp(log_rank(random))) - 1];
    }
    text += random() % 4 == 0 ? "。" : "，";
  }
  return text;
}

std::string Interleave(const std::vector<std::string>& texts) {
  std::string mixed;
  for (size_t at = 0; at < kTextBytes; at += 3000) {
    for (const std::string& text : texts) mixed += std::string_view(text).substr(at, 1000);
  }
  return Utf8Sanitize(mixed);
}

void CountBytes(benchmark::State& state, size_t text_bytes, size_t tokens) {
  state.counters["MiB/s"] = benchmark::Counter(
      static_cast<double>(text_bytes) * static_cast<double>(state.iterations()) / (1 << 20),
      benchmark::Counter::kIsRate);
  state.counters["bytes/token"] = static_cast<double>(text_bytes) / static_cast<double>(tokens);
}

void Encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  if (text.empty()) return state.SkipWithError("no such text on this machine");
  size_t tokens = 0;
  for (auto _ : state) tokens = tokenizer.Encode(text).size();
  CountBytes(state, text.size(), tokens);
}

void StreamDecode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<TokenId> ids = tokenizer.Encode(text);
  for (auto _ : state) {
    StreamDetokenizer stream(tokenizer, true);
    for (const TokenId id : ids) benchmark::DoNotOptimize(stream.Push(id));
  }
  CountBytes(state, text.size(), ids.size());
  state.counters["s/token"] =
      benchmark::Counter(static_cast<double>(ids.size()) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Register(const Tokenizer& tokenizer) {
  const std::string english = ReadFolder("/usr/share/common-licenses");
  const std::string code = ReadFolder("/usr/include/c++");
  const std::string chinese = MakeChinese(tokenizer);
  const std::string mixed = Interleave({english, code, chinese});
  const auto encode = [&tokenizer](const std::string& name, const std::string& text) {
    benchmark::RegisterBenchmark(("encode/" + name).c_str(), [&tokenizer, text](auto& state) {
      Encode(state, tokenizer, text);
    })->Unit(benchmark::kMillisecond);
  };
  encode("english", english);
  encode("code", code);
  encode("chinese", chinese);
  encode("mixed", mixed);
  benchmark::RegisterBenchmark("stream_decode/mixed", [&tokenizer, mixed](auto& state) {
    StreamDecode(state, tokenizer, mixed);
  })->Unit(benchmark::kMillisecond);
  const std::vector<std::pair<std::string, std::string>> runs = {
      {"a", "a"},    {"caret", "^"}, {"space", " "},     {"newline", "\n"},
      {"han", "中"}, {"emoji", "😀"}, {"mark", "\u0301"}, {"bad_byte", "\x80"}};
  for (const auto& [name, unit] : runs) {
    for (const size_t kib : {1, 64, 1024, 2048, 4096, 8192}) {
      std::string text;
      while (text.size() < kib << 10) text += unit;
      encode("run_of_" + name + "/" + std::to_string(kib) + "KiB", text);
    }
  }
}

}  // namespace
}  // namespace baltoro

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::string folder = baltoro::test::KimiTokenizerDir();
  if (folder.empty()) {
    std::fprintf(stderr, "no vocabulary: set BALTORO_TEST_DATA\n");
    return 1;
  }
  const auto tokenizer = baltoro::Tokenizer::Load(folder);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 1;
  }
  baltoro::Register(*tokenizer.value());
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
