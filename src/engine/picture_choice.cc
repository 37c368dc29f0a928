#include "engine/picture_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

namespace baltoro {
namespace {

// media_proc_cfg.in_patch_limit of the released models: before sides are rounded up to what merges.
constexpr int64_t kPatchLimit = 16384;

Result<bool> HasEncoder(const std::string& dir) {
  BT_ASSIGN_OR_RETURN(const Json config, ReadJsonFile(dir + "/config.json"));
  const auto found = config.find("vision_config");
  return found != config.end() && found->is_object();
}

}  // namespace

int32_t PictureChoice::tokens_max() const {
  const int64_t merged = int64_t{encoder.merge_rows} * encoder.merge_columns;
  return static_cast<int32_t>(std::min<int64_t>(rows, patches_max / merged));
}

void PictureChoice::Tell(EngineInfo& info) const {
  info.picture_tokens_max = tokens_max();
  info.picture_rows = rows;
  info.picture_layers = encoder.layers + 1;
  info.picture_patches_max = patches_max;
  info.picture_patch_bytes = encoder.pixels();
}

Result<std::optional<PictureChoice>> ChoosePictures(const EngineConfig& config,
                                                    const K2Config& model,
                                                    const OpsTable& ops) {
  if (config.language_model_only) return std::optional<PictureChoice>();
  BT_ASSIGN_OR_RETURN(const bool has_encoder, HasEncoder(config.model_dir));
  if (!has_encoder) return std::optional<PictureChoice>();
  PictureChoice choice;
  BT_ASSIGN_OR_RETURN(choice.encoder, VisionConfig::Read(config.model_dir));
  const std::string why = config.deterministic
                              ? "not with --deterministic"
                              : WhyNoPictures(ops.name, ops.vision, choice.encoder.widths());
  if (!why.empty()) {
    BT_LOG(Warning, "Pictures are not taken: {}", why);
    return std::optional<PictureChoice>();
  }
  if (choice.encoder.text_hidden != model.hidden) {
    return InvalidArgument(
        fmt::format("{}/config.json: the picture encoder's rows are {} wide, the text model's {}",
                    config.model_dir, choice.encoder.text_hidden, model.hidden));
  }
  choice.patches_max = kPatchLimit + 2 * int64_t{choice.encoder.side_max};
  const int64_t merged = int64_t{choice.encoder.merge_rows} * choice.encoder.merge_columns;
  const int64_t row_bytes = model.hidden * int64_t{sizeof(float)};
  constexpr int64_t kRowsMost = 1 << 20;
  choice.rows = static_cast<int32_t>(std::clamp<int64_t>(config.picture_cache_bytes / row_bytes,
                                                         choice.patches_max / merged, kRowsMost));
  const VisionBytes bytes = VisionEncoder::PlanBytes(choice.encoder, ops, choice.patches_max,
                                                     std::max(config.threads, 1));
  choice.bytes = bytes.weights + bytes.batch + bytes.scratch + choice.rows * row_bytes;
  constexpr double kGiB = 1 << 30;
  BT_LOG(Info, "Pictures: an encoder of {} layers, {:.2f} GiB, {} rows of pictures among it",
         choice.encoder.layers, static_cast<double>(choice.bytes) / kGiB, choice.rows);
  return std::optional(std::move(choice));
}

Result<std::unique_ptr<PictureMemory>> LoadPictures(const PictureChoice& choice,
                                                    WeightSource& source,
                                                    const OpsTable& ops,
                                                    ThreadPool* pool) {
  BT_ASSIGN_OR_RETURN(std::unique_ptr<VisionEncoder> encoder,
                      VisionEncoder::Create(choice.encoder, source, ops, pool, choice.patches_max));
  return PictureMemory::Create(std::move(encoder), choice.rows, ops, pool);
}

}  // namespace baltoro
