#include "support/golden_model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/gzip.h"

namespace baltoro::test {
namespace {

const Json& Golden() {
  static const Json golden = ReadRecording("tests/golden/tiny_models.json.gz");
  return golden;
}

}  // namespace

Json ReadRecording(const std::string& path) {
  const Result<std::string> text = ReadPlainOrGzip(path);
  Result<Json> read = text.ok() ? ParseJson(text.value(), {.nodes = 20'000'000}) : text.status();
  if (!read.ok()) {  // tests are listed by it, before main
    std::fprintf(stderr, "%s: run this from the folder of the sources\n",
                 read.status().message().c_str());
    std::exit(1);
  }
  return std::move(read).value();
}

size_t GoldenModel::Count() {
  return Golden()["cases"].size();
}

std::string GoldenModel::NameOf(size_t index) {
  return Golden()["cases"][index]["name"].get<std::string>();
}

GoldenModel::GoldenModel(size_t index)
    : golden_(Golden()["cases"][index]),
      config_(K2Config::Parse(golden_["config"]).value()),
      tokens_(golden_["tokens"].get<std::vector<int32_t>>()),
      source_(golden_["bias"].get<bool>()) {}

std::unique_ptr<K2Model> GoldenModel::Load(const OpsTable& ops) {
  auto model = K2Model::Load(config_, source_, ops, &pool_, {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(model).value();
}

std::vector<float> GoldenModel::Logits(K2Model& model, int32_t absorbed_from) {
  return TinyRunner(model, std::ssize(tokens_)).Run(tokens_, absorbed_from);
}

void GoldenModel::ExpectAgreement(std::span<const float> logits, const char* what) const {
  for (size_t i = 0; i < golden_["rows"].size(); ++i) {
    const auto want = golden_["logits"][i].get<std::vector<float>>();
    const size_t row = golden_["rows"][i].get<size_t>();
    float largest = 0, worst = 0;
    for (size_t v = 0; v < want.size(); ++v) {
      const float got = logits[row * want.size() + v];
      EXPECT_TRUE(std::isfinite(got)) << what << ", row " << row << ", logit " << v;
      largest = std::max(largest, std::abs(want[v]));
      worst = std::max(worst, std::abs(got - want[v]));
    }
    EXPECT_LE(worst, 1e-4f * largest) << what << ", row " << row;
  }
}

std::vector<float> GoldenModel::RecordedRowsOf(std::span<const float> logits) const {
  std::vector<float> out;
  for (const Json& row : golden_["rows"]) {
    const auto from = logits.begin() + row.get<int64_t>() * config_.vocab;
    out.insert(out.end(), from, from + config_.vocab);
  }
  return out;
}

std::vector<float> GoldenModel::Recorded() const {
  std::vector<float> out;
  for (const Json& row : golden_["logits"]) {
    for (const Json& logit : row) out.push_back(logit.get<float>());
  }
  return out;
}

}  // namespace baltoro::test
