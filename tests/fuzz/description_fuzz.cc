// What lies beside the weights: the first byte chooses between an index and a description.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "weights/quant_description.h"
#include "weights/shard_index.h"

namespace {

using baltoro::Json;

void RunIndex(const Json& json) {
  const auto index = baltoro::ParseShardIndex(json);
  if (!index.ok()) {
    BT_CHECK(!index.status().message().empty());
    return;
  }
  size_t tensors = 0;
  for (const auto& [file, names] : index.value().files) {
    BT_CHECK(!file.empty() && file.find('/') == std::string::npos && file != "..");
    BT_CHECK(!names.empty());
    tensors += names.size();
  }
  BT_CHECK(tensors == json["weight_map"].size());
  BT_CHECK(index.value().total_size >= -1);
}

void RunDescription(const Json& json) {
  const auto description = baltoro::ParseQuantDescription(json);
  if (!description.ok()) {
    BT_CHECK(!description.status().message().empty());
    return;
  }
  BT_CHECK(description.value().forms.size() <= json.size());
  for (const auto& [name, form] : description.value().forms) {
    const char* type = baltoro::AscendType(form);
    BT_CHECK(type != nullptr && baltoro::AscendForm(type, name).value() == form);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto json =
      baltoro::ParseJson(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  if (!json.ok()) return 0;
  if (data[0] % 2 == 0) {
    RunIndex(json.value());
  } else {
    RunDescription(json.value());
  }
  return 0;
}
