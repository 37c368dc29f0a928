#include "engine/picture_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/layout_choice.h"
#include "ops/cpu/cpu_use.h"
#include "ops/gpu_vision.h"
#include "parallel/layout.h"

namespace baltoro {
namespace {

constexpr int64_t kRowsMost = 1 << 20;
constexpr int32_t kGatherRows = 256;

// Why the encoder of a model that has one is not used; empty: it is.
std::string WhyNot(const PictureQuestion& question) {
  if (question.config.language_model_only)
    return "its encoder is left out, by --language-model-only or a limit of no picture and no "
           "video";
  // A chunk of a prompt, which is computed at once, may want more pictures than there is room for.
  if (question.gpu && question.config.deterministic) {
    return "with --deterministic a GPU computes prompts in fixed chunks, which do not wait for "
           "pictures; without it, or with --device cpu, it takes them";
  }
  return "";
}

Result<VisionConfig> EncoderOf(const PictureQuestion& question) {
  if (question.model_dir.empty()) return VisionConfig::Released();
  return VisionConfig::Read(question.model_dir);
}

// Whether tensor ranks share out the pictures, or the encoder.
Status ChooseSharing(const PictureQuestion& question,
                     const VisionOps& vision,
                     PictureChoice& choice) {
  const ParallelLayout layout = LayoutOf(question.config);
  const std::string& mode = question.config.mm_encoder_tp_mode;
  choice.ranks = layout.tensor;
  choice.gather_rows = std::min(kGatherRows, question.config.max_num_batched_tokens);
  if (layout.tensor == 1) return {};
  choice.shared_out = mode == "data";
  if (choice.shared_out) return {};
  const Status divides = CheckEncoderHeads(layout, choice.encoder.heads);
  const bool parts = vision.attention_part != nullptr;
  if (parts && (divides.ok() || !mode.empty())) return divides;
  choice.shared_out = true;
  choice.note = parts ? fmt::format("its {} heads cannot be divided among {} tensor ranks",
                                    choice.encoder.heads, layout.tensor)
                      : "a GPU has no operations for a part of it";
  return {};
}

// Multiplications of a token of a prompt, those of attention's keys left out.
double TokenProducts(const K2Config& c) {
  const int64_t queries = c.heads * c.head_dim();
  const int64_t q = c.q_lora > 0 ? c.q_lora * (c.hidden + queries) : c.hidden * queries;
  const int64_t kv = c.hidden * c.cache_width() + c.kv_lora * c.heads * (c.nope + c.value);
  const int64_t attention = q + kv + c.heads * c.value * c.hidden;
  const int64_t moe = c.experts > 0 ? c.layers - c.dense_layers : 0;
  const int64_t columns = (c.layers - moe) * c.intermediate +
                          moe * c.moe_intermediate * (c.router.top_k + c.shared_experts);
  return static_cast<double>(c.layers * attention + 3 * c.hidden * columns);
}

void Reckon(const K2Config& model, PictureChoice& choice) {
  const auto hidden = static_cast<double>(choice.encoder.hidden);
  const auto columns = static_cast<double>(choice.encoder.intermediate);
  // A token is computed by all tensor ranks, a picture that is shared out by one.
  const double tokens = (choice.shared_out ? choice.ranks : 1) / TokenProducts(model);
  choice.patch_tokens = (4 * hidden * hidden + 2 * hidden * columns) * tokens;
  choice.pair_tokens = 2 * hidden * tokens;
}

VisionPart PartOf(const PictureChoice& choice, int32_t tensor) {
  if (choice.shared_out) return {};
  return {.ranks = choice.ranks, .rank = tensor};
}

PictureSharing SharingOf(const PictureChoice& choice, int32_t tensor, RankOps* ops) {
  if (!choice.shared_out) return {};
  return {.ranks = choice.ranks, .rank = tensor, .ops = ops, .rows_max = choice.gather_rows};
}

}  // namespace

int32_t PictureChoice::tokens_max() const {
  return static_cast<int32_t>(std::min<int64_t>(rows, encoder.tokens_max(patches_max)));
}

void PictureChoice::Tell(EngineInfo& info) const {
  info.picture_tokens_max = tokens_max();
  info.picture_rows = rows;
  info.picture_layers = encoder.layers + 1;
  info.picture_patches_max = patches_max;
  info.picture_patch_bytes = encoder.pixels();
  info.picture_merge_rows = encoder.merge_rows;
  info.picture_merge_columns = encoder.merge_columns;
  info.picture_side_max = encoder.side_max();
  info.picture_frames_max = encoder.frames_max;
  info.picture_ranks = shared_out ? ranks : 1;
  info.picture_patch_tokens = patch_tokens;
  info.picture_pair_tokens = pair_tokens;
}

Result<PictureAnswer> ChoosePictures(const PictureQuestion& question) {
  const K2Config& model = question.model;
  if (!model.multimodal) return PictureAnswer();
  if (std::string why = WhyNot(question); !why.empty()) {
    return PictureAnswer{.why_not = std::move(why)};
  }
  PictureChoice choice;
  BT_ASSIGN_OR_RETURN(choice.encoder, EncoderOf(question));
  if (choice.encoder.text_hidden != model.hidden) {
    return InvalidArgument(
        fmt::format("{}/config.json: the picture encoder's rows are {} wide, the text model's {}",
                    question.model_dir, choice.encoder.text_hidden, model.hidden));
  }
  OpsTable ops = question.ops;
  if (question.gpu) ops.vision = &gpu_vision::Sizes();
  std::string refused =
      WhyNoPictures(question.gpu ? "a GPU" : ops.name, ops.vision, choice.encoder.widths());
  if (!refused.empty()) return PictureAnswer{.why_not = std::move(refused)};
  BT_RETURN_IF_ERROR(ChooseSharing(question, *ops.vision, choice));
  Reckon(model, choice);
  choice.patches_max = choice.encoder.patches_max();
  const int64_t row_bytes = model.hidden * int64_t{sizeof(float)};
  choice.rows = static_cast<int32_t>(
      std::clamp<int64_t>(question.config.picture_cache_bytes / row_bytes,
                          choice.encoder.tokens_max(choice.patches_max), kRowsMost));
  const int threads = cpu::FindCpuUse(question.config.threads, question.ranks_here).threads;
  const VisionBytes encoder =
      VisionEncoder::PlanBytes(choice.encoder, ops, choice.patches_max, threads, PartOf(choice, 0));
  const PictureMemory::Bytes rows = PictureMemory::PlanBytes(
      choice.encoder, choice.rows, choice.patches_max, SharingOf(choice, 0, nullptr));
  choice.bytes = {.weights = encoder.weights,
                  .workspace = encoder.batch + encoder.scratch + rows.made,
                  .rows = rows.kept};
  return PictureAnswer{.choice = std::move(choice)};
}

Result<std::unique_ptr<PictureMemory>> LoadPictures(const PictureChoice& choice,
                                                    WeightSource& source,
                                                    const OpsTable& ops,
                                                    ThreadPool* pool,
                                                    int32_t tensor,
                                                    RankOps* ranks) {
  const VisionPart part = PartOf(choice, tensor);
  BT_ASSIGN_OR_RETURN(std::unique_ptr<VisionEncoder> encoder,
                      VisionEncoder::Create(choice.encoder, source, ops, pool, choice.patches_max,
                                            part, part.ranks > 1 ? ranks : nullptr));
  return PictureMemory::Create(std::move(encoder), choice.rows, ops, pool,
                               SharingOf(choice, tensor, ranks));
}

}  // namespace baltoro
