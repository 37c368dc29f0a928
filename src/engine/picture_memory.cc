#include "engine/picture_memory.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/check.h"

namespace baltoro {

PictureMemory::PictureMemory(std::unique_ptr<VisionEncoder> encoder,
                             int32_t rows,
                             const OpsTable& ops,
                             ThreadPool* pool)
    : encoder_(std::move(encoder)),
      rows_(rows),
      ops_(ops),
      pool_(pool),
      scratch_(*ops.memory),
      staging_(ops.staging == nullptr ? HostMemory() : *ops.staging) {}

Result<std::unique_ptr<PictureMemory>> PictureMemory::Create(std::unique_ptr<VisionEncoder> encoder,
                                                             int32_t rows,
                                                             const OpsTable& ops,
                                                             ThreadPool* pool) {
  std::unique_ptr<PictureMemory> made(new PictureMemory(std::move(encoder), rows, ops, pool));
  const int64_t numbers = int64_t{rows} * made->encoder_->config().text_hidden;
  BT_ASSIGN_OR_RETURN(
      made->memory_,
      Buffer::Create(static_cast<size_t>(numbers) * sizeof(float),
                     "rows of pictures (lower --mm-processor-cache-gb)", *ops.memory));
  const VisionEncoder& own = *made->encoder_;
  const int threads = pool == nullptr ? 1 : pool->threads();
  const VisionBytes bytes = VisionEncoder::PlanBytes(own.config(), ops, own.patches_max(), threads);
  BT_RETURN_IF_ERROR(made->scratch_.Reserve(static_cast<size_t>(bytes.scratch)));
  return made;
}

TensorView PictureMemory::Rows(int32_t from, int32_t count) const {
  BT_CHECK(from >= 0 && count >= 0 && from + count <= rows_);
  const int64_t hidden = encoder_->config().text_hidden;
  auto* const all = static_cast<float*>(const_cast<void*>(memory_.data()));
  return TensorView(all + from * hidden, DType::kF32, {count, hidden});
}

Status PictureMemory::Begin(const PlannedEncode& encode) {
  std::vector<Picture> pictures;
  int64_t tokens = 0;
  for (const EncodedPicture& one : encode.pictures) {
    const std::string& pixels = one.pixels.str();
    Picture& picture = pictures.emplace_back();
    picture.grid = {.frames = one.frames, .rows = one.rows, .columns = one.columns};
    picture.pixels = {reinterpret_cast<const uint8_t*>(pixels.data()), pixels.size()};
    tokens += encoder_->config().tokens(picture.grid);
  }
  if (encode.place + tokens > rows_) {
    return InvalidArgument(
        fmt::format("pictures of {} rows have no place at {}", tokens, encode.place));
  }
  batch_.reset();
  BT_ASSIGN_OR_RETURN(VisionBatch batch,
                      encoder_->Begin(pictures, Rows(encode.place, static_cast<int32_t>(tokens))));
  batch_.emplace(std::move(batch));
  return {};
}

Status PictureMemory::Encode(std::span<const PlannedEncode> encodes) {
  const OpContext context{
      .pool = pool_, .scratch = &scratch_, .staging = &staging_, .rank = ops_.rank};
  // What was staged for layers of a step before may still be on its way.
  if (ops_.staging != nullptr) BT_RETURN_IF_ERROR(ops_.wait(context));
  staging_.Reset();
  for (const PlannedEncode& encode : encodes) {
    if (!encode.pictures.empty()) BT_RETURN_IF_ERROR(Begin(encode));
    if (!batch_ || batch_->layers_left() < encode.layers) {
      return InvalidArgument(
          fmt::format("{} layers are asked of a batch of pictures that has {} left", encode.layers,
                      batch_ ? batch_->layers_left() : 0));
    }
    batch_->Advance(context, encode.layers);
  }
  return {};
}

int64_t PictureMemory::scratch_bytes() const {
  return static_cast<int64_t>(memory_.bytes() + scratch_.bytes_reserved() +
                              staging_.bytes_reserved());
}

}  // namespace baltoro
