// config.json, and the same text as generation_config.json.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "model/k2_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = baltoro::ParseJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!json.ok()) return 0;
  auto config = baltoro::K2Config::Parse(json.value());
  if (!config.ok()) {
    BT_CHECK(!config.status().message().empty());
    return 0;
  }
  // What was accepted can be used without further checks.
  BT_CHECK(config.value().Validate().ok());
  const auto frequencies =
      baltoro::InverseFrequencies(config.value().rope, config.value().rope_dim);
  BT_CHECK(static_cast<int64_t>(frequencies.size()) == config.value().rope_dim / 2);
  const auto generation = config.value().AddGenerationConfig(json.value());
  BT_CHECK(generation.ok());  // the same eos_token_id was in range before
  return 0;
}
