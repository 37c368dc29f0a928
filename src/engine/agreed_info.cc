#include "engine/agreed_info.h"

#include <fmt/format.h>

#include <vector>

namespace baltoro {

EngineInfo AgreedInfo::Agree(const EngineInfo& info) {
  const std::lock_guard lock(mutex_);
  if (!info_.has_value()) info_ = info;
  changed_.notify_all();
  return *info_;
}

void AgreedInfo::GiveUp(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (why_.ok()) why_ = why;
  changed_.notify_all();
}

Result<EngineInfo> AgreedInfo::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return info_.has_value() || !why_.ok(); });
  if (!info_.has_value()) return why_;
  return *info_;
}

std::string DifferenceOf(const EngineInfo& agreed, const EngineInfo& info) {
  std::vector<std::string> found;
  const auto compare = [&](const char* what, const auto& first, const auto& here) {
    if (first == here) return;
    found.push_back(fmt::format("{}: {} and {}", what, first, here));
  };
  compare("model_type", agreed.model_type, info.model_type);
  compare("--max-model-len", agreed.max_model_len, info.max_model_len);
  compare("size of the vocabulary", agreed.vocab_size, info.vocab_size);
  compare("form of the KV cache", agreed.kv_cache_dtype, info.kv_cache_dtype);
  compare("constrained answers", agreed.constraints, info.constraints);
  compare("why no pictures", agreed.no_pictures, info.no_pictures);
  compare("tokens of a picture", agreed.picture_tokens_max, info.picture_tokens_max);
  compare("patches of a picture", agreed.picture_patches_max, info.picture_patches_max);
  compare("bytes of a patch", agreed.picture_patch_bytes, info.picture_patch_bytes);
  compare("rows of the memory of pictures", agreed.picture_rows, info.picture_rows);
  return fmt::format("{}", fmt::join(found, "; "));
}

}  // namespace baltoro
