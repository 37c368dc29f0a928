#include "weights/shard_index.h"

#include <fmt/format.h>

#include "base/file.h"

namespace baltoro {
namespace {

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

Result<ShardIndex> ParseShardIndex(const Json& json) {
  if (!json.is_object()) return InvalidArgument("no weight_map object");
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) return InvalidArgument("no weight_map object");
  ShardIndex index;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get_ref<const std::string&>())) {
      return InvalidArgument(fmt::format("tensor {}: no plain file name", name));
    }
    index.files[file.get_ref<const std::string&>()].push_back(name);
  }
  const auto metadata = json.find("metadata");
  if (metadata != json.end() && metadata->is_object()) {
    const auto size = metadata->find("total_size");
    if (size != metadata->end() && size->is_number_unsigned() &&
        size->get<uint64_t>() <= uint64_t{INT64_MAX}) {
      index.total_size = size->get<int64_t>();
    }
  }
  return index;
}

Result<WeightFiles> FindWeightFiles(const std::string& dir) {
  for (const char* stem : {"model", "quant_model_weights"}) {
    const std::string single = fmt::format("{}/{}.safetensors", dir, stem);
    const std::string index = single + ".index.json";
    if (FileExists(index)) return WeightFiles{.index = index, .single = {}};
    if (FileExists(single)) return WeightFiles{.index = {}, .single = single};
  }
  return Status(
      Code::kNotFound,
      dir +
          ": no weights: neither model.safetensors.index.json nor model.safetensors is there; "
          "the download is not complete, or --load-format dummy shall make weights up");
}

}  // namespace baltoro
