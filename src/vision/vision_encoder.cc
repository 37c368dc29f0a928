#include "vision/vision_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace baltoro {
namespace {

constexpr double kTimeBase = 10000;  // of the fixed table of times

// Floats of the tables: times, then cosines, then sines.
struct TableSizes {
  int64_t times, angles;
  explicit TableSizes(const VisionConfig& config)
      : times(config.frames_max * config.hidden),
        angles(config.side_max() * (config.head_size() / 4)) {}
  int64_t Floats() const { return times + 2 * angles; }
};

// Frame f: sines of f times the frequencies, then their cosines.
void FillTimes(const VisionConfig& config, float* out) {
  const int64_t half = config.hidden / 2;
  for (int64_t f = 0; f < config.frames_max; ++f) {
    for (int64_t i = 0; i < half; ++i) {
      const double turn = std::pow(kTimeBase, -static_cast<double>(i) / static_cast<double>(half));
      out[f * config.hidden + i] = static_cast<float>(std::sin(static_cast<double>(f) * turn));
      out[f * config.hidden + half + i] =
          static_cast<float>(std::cos(static_cast<double>(f) * turn));
    }
  }
}

void FillAngles(const VisionConfig& config, float* cos, float* sin) {
  const int64_t count = config.head_size() / 4;
  for (int64_t place = 0; place < config.side_max(); ++place) {
    for (int64_t i = 0; i < count; ++i, ++cos, ++sin) {
      const double angle =
          static_cast<double>(place) *
          std::pow(config.rope_theta, -static_cast<double>(i) / static_cast<double>(count));
      *cos = static_cast<float>(std::cos(angle));
      *sin = static_cast<float>(std::sin(angle));
    }
  }
}

int64_t StreamBytes(const VisionConfig& config, int64_t patches) {
  return patches * config.hidden * int64_t{sizeof(float)};
}

}  // namespace

VisionBytes VisionEncoder::PlanBytes(const VisionConfig& config,
                                     const OpsTable& ops,
                                     int64_t patches_max,
                                     int threads,
                                     const VisionPart& part) {
  BT_CHECK(ops.vision != nullptr);
  return {.weights = VisionWeightBytes(config, ops, part),
          .batch = StreamBytes(config, patches_max) + patches_max * config.pixels() +
                   TableSizes(config).Floats() * int64_t{sizeof(float)},
          .scratch = ops.vision->scratch_bytes(config.widths(), patches_max, threads)};
}

Result<std::unique_ptr<VisionEncoder>> VisionEncoder::Create(const VisionConfig& config,
                                                             WeightSource& source,
                                                             const OpsTable& ops,
                                                             ThreadPool* pool,
                                                             int64_t patches_max,
                                                             const VisionPart& part,
                                                             RankOps* ranks) {
  BT_RETURN_IF_ERROR(config.Validate());
  BT_CHECK(patches_max > 0);
  const std::string why = WhyNoPictures(ops.name, ops.vision, config.widths());
  if (!why.empty()) return InvalidArgument(why);
  BT_CHECK((part.ranks > 1) == (ranks != nullptr));
  if (part.ranks > 1 && ops.vision->attention_part == nullptr) {
    return InvalidArgument(fmt::format("{} has no operations for a part of an encoder", ops.name));
  }
  std::unique_ptr<VisionEncoder> encoder(new VisionEncoder(config, ops, patches_max, part, ranks));
  BT_ASSIGN_OR_RETURN(encoder->weights_, LoadVisionWeights(config, source, ops, pool, part));
  BT_RETURN_IF_ERROR(encoder->MakeTables());
  BT_ASSIGN_OR_RETURN(encoder->stream_memory_,
                      Buffer::Create(static_cast<size_t>(StreamBytes(config, patches_max)),
                                     "pictures being encoded", *ops.memory));
  BT_ASSIGN_OR_RETURN(encoder->pixels_memory_,
                      Buffer::Create(static_cast<size_t>(patches_max * config.pixels()),
                                     "pixels of pictures", *ops.memory));
  return encoder;
}

int64_t VisionEncoder::bytes() const {
  return static_cast<int64_t>(weights_.memory.bytes() + tables_memory_.bytes() +
                              stream_memory_.bytes() + pixels_memory_.bytes());
}

Status VisionEncoder::MakeTables() {
  const TableSizes sizes(config_);
  const char* what = "tables of the picture encoder";
  BT_ASSIGN_OR_RETURN(Buffer made,
                      Buffer::Create(static_cast<size_t>(sizes.Floats()) * sizeof(float), what));
  auto* floats = static_cast<float*>(made.data());
  FillTimes(config_, floats);
  FillAngles(config_, floats + sizes.times, floats + sizes.times + sizes.angles);
  BT_ASSIGN_OR_RETURN(tables_memory_, MoveTo(*ops_.memory, std::move(made), what));
  floats = static_cast<float*>(tables_memory_.data());
  const int64_t quarter = config_.head_size() / 4;
  times_ = TensorView(floats, DType::kF32, {config_.frames_max, config_.hidden});
  cos_ = TensorView(floats + sizes.times, DType::kF32, {config_.side_max(), quarter});
  sin_ =
      TensorView(floats + sizes.times + sizes.angles, DType::kF32, {config_.side_max(), quarter});
  return {};
}

Status VisionEncoder::Check(const Picture& picture) const {
  const PictureGrid& grid = picture.grid;
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument(
        fmt::format("is {} x {} x {} patches; {}", grid.frames, grid.rows, grid.columns, why));
  };
  if (grid.frames < 1 || grid.rows < 1 || grid.columns < 1) return refuse("each must be positive");
  if (grid.frames > config_.frames_max) {
    return refuse(fmt::format("at most {} frames are one item", config_.frames_max));
  }
  if (std::max(grid.rows, grid.columns) > config_.side_max()) {
    return refuse(fmt::format("a side may have {} at most", config_.side_max()));
  }
  if (grid.rows % config_.merge_rows != 0 || grid.columns % config_.merge_columns != 0) {
    return refuse(fmt::format("sides must be multiples of {} x {}", config_.merge_rows,
                              config_.merge_columns));
  }
  const int64_t bytes = grid.patches() * config_.pixels();
  if (std::ssize(picture.pixels) != bytes) {
    return refuse(
        fmt::format("these have {} bytes, but {} were given", bytes, picture.pixels.size()));
  }
  return {};
}

Result<VisionBatch> VisionEncoder::Begin(std::span<const Picture> pictures, TensorView out) {
  std::vector<PictureGrid> grids;
  int64_t patches = 0, tokens = 0;
  for (size_t i = 0; i < pictures.size(); ++i) {
    const Status fits = Check(pictures[i]);
    if (!fits.ok()) return InvalidArgument(fmt::format("picture {} {}", i, fits.message()));
    grids.push_back(pictures[i].grid);
    patches += pictures[i].grid.patches();
    tokens += config_.tokens(pictures[i].grid);
  }
  if (patches > patches_max_) {
    return InvalidArgument(fmt::format(
        "{} pictures have {} patches together; this encoder takes {} at once; give it fewer of "
        "them, or smaller ones",
        pictures.size(), patches, patches_max_));
  }
  BT_CHECK(out.rank == 2 && out.dtype == DType::kF32 && out.contiguous());
  BT_CHECK(out.dim(0) == tokens && out.dim(1) == config_.text_hidden);
  char* to = static_cast<char*>(pixels_memory_.data());
  for (const Picture& picture : pictures) {
    BT_RETURN_IF_ERROR(ops_.memory->CopyIn(to, picture.pixels.data(), picture.pixels.size()));
    to += picture.pixels.size();
  }
  ++begun_;
  return VisionBatch(*this, std::move(grids), out);
}

VisionBatch::VisionBatch(const VisionEncoder& encoder,
                         std::vector<PictureGrid> grids,
                         TensorView out)
    : encoder_(&encoder), number_(encoder.begun_), grids_(std::move(grids)), out_(out) {
  int64_t patches = 0;
  for (const PictureGrid& grid : grids_) patches += grid.patches();
  x_ = TensorView(encoder.stream_memory_.data(), DType::kF32, {patches, config().hidden});
  pixels_ = TensorView(encoder.pixels_memory_.data(), DType::kU8, {patches, config().pixels()});
}

void VisionBatch::Advance(const OpContext& context, int32_t layers) {
  BT_CHECK(layers > 0 && number_ == encoder_->begun_);
  const std::vector<VisionBlockWeights>& blocks = encoder_->weights_.blocks;
  for (; layers > 0 && !done(); --layers, ++done_) {
    if (done_ == 0) Embed(context);
    if (done_ < config().layers) {
      RunBlock(context, blocks[static_cast<size_t>(done_)]);
    } else {
      Project(context);
    }
  }
}

void VisionBatch::Embed(const OpContext& context) const {
  EmbedPatchesArgs args{.x = x_,
                        .pixels = pixels_,
                        .projection = encoder_->weights_.patches,
                        .positions = encoder_->weights_.positions,
                        .times = encoder_->times_,
                        .grids = grids_};
  const PictureRules& rules = config().rules;
  for (size_t c = 0; c < 3; ++c) {
    args.scale[c] = static_cast<float>(1 / (255 * rules.std[c]));
    args.shift[c] = static_cast<float>(-rules.mean[c] / rules.std[c]);
  }
  context.scratch->Reset();
  encoder_->ops_.vision->embed(context, args);
}

void VisionBatch::RunBlock(const OpContext& context, const VisionBlockWeights& block) const {
  const VisionOps& ops = *encoder_->ops_.vision;
  const VisionPart& part = encoder_->part_;
  const VisionBlockArgs args = {.x = x_,
                                .attention_norm = block.attention_norm,
                                .mlp_norm = block.mlp_norm,
                                .qkv = block.qkv,
                                .o = block.o,
                                .up = block.up,
                                .down = block.down,
                                .cos = encoder_->cos_,
                                .sin = encoder_->sin_,
                                .grids = grids_,
                                .heads = config().heads / part.ranks,
                                .replaces = part.rank != 0};
  context.scratch->Reset();
  if (part.ranks == 1) return ops.block(context, args);
  ops.attention_part(context, args);
  encoder_->ranks_->Sum(context, x_);
  context.scratch->Reset();
  ops.mlp_part(context, args);
  encoder_->ranks_->Sum(context, x_);
}

void VisionBatch::Project(const OpContext& context) const {
  context.scratch->Reset();
  encoder_->ops_.vision->project(context, {.out = out_,
                                           .x = x_,
                                           .norm = encoder_->weights_.norm,
                                           .merge_norm = encoder_->weights_.merge_norm,
                                           .first = encoder_->weights_.first,
                                           .second = encoder_->weights_.second,
                                           .merge_rows = config().merge_rows,
                                           .merge_columns = config().merge_columns,
                                           .grids = grids_});
}

}  // namespace baltoro
