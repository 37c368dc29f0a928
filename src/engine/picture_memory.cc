#include "engine/picture_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace baltoro {

PictureMemory::PictureMemory(std::unique_ptr<VisionEncoder> encoder,
                             int32_t rows,
                             const OpsTable& ops,
                             ThreadPool* pool,
                             const PictureSharing& sharing)
    : encoder_(std::move(encoder)),
      rows_(rows),
      ops_(ops),
      pool_(pool),
      sharing_(sharing),
      scratch_(*ops.memory),
      staging_(ops.staging == nullptr ? HostMemory() : *ops.staging),
      places_(static_cast<size_t>(sharing.ranks)) {}

PictureMemory::Bytes PictureMemory::PlanBytes(const VisionConfig& encoder,
                                              int32_t rows,
                                              int64_t patches_max,
                                              const PictureSharing& sharing) {
  const int64_t row = encoder.text_hidden * int64_t{sizeof(float)};
  const int64_t gathered = sharing.ranks > 1 ? int64_t{sharing.ranks} * sharing.rows_max : 0;
  return {.kept = rows * row, .made = (encoder.tokens_max(patches_max) + gathered) * row};
}

Result<std::unique_ptr<PictureMemory>> PictureMemory::Create(std::unique_ptr<VisionEncoder> encoder,
                                                             int32_t rows,
                                                             const OpsTable& ops,
                                                             ThreadPool* pool,
                                                             const PictureSharing& sharing) {
  BT_CHECK(sharing.ranks == 1 || sharing.ops != nullptr);
  std::unique_ptr<PictureMemory> made(
      new PictureMemory(std::move(encoder), rows, ops, pool, sharing));
  const VisionEncoder& own = *made->encoder_;
  const Bytes bytes = PlanBytes(own.config(), rows, own.patches_max(), sharing);
  const int64_t batch = PlanBytes(own.config(), rows, own.patches_max(), {}).made;
  const auto take = [&](Buffer& buffer, int64_t size, const char* what) -> Status {
    if (size == 0) return {};
    BT_ASSIGN_OR_RETURN(buffer, Buffer::Create(static_cast<size_t>(size), what, *ops.memory));
    return {};
  };
  BT_RETURN_IF_ERROR(
      take(made->memory_, bytes.kept, "rows of pictures (lower --mm-processor-cache-gb)"));
  BT_RETURN_IF_ERROR(take(made->made_, batch, "rows of pictures being encoded"));
  BT_RETURN_IF_ERROR(take(made->gathered_, bytes.made - batch, "rows of other ranks' pictures"));
  const int threads = pool == nullptr ? 1 : pool->threads();
  const VisionBytes needed =
      VisionEncoder::PlanBytes(own.config(), ops, own.patches_max(), threads);
  BT_RETURN_IF_ERROR(made->scratch_.Reserve(static_cast<size_t>(needed.scratch)));
  return made;
}

TensorView PictureMemory::Rows(int32_t from, int32_t count) const {
  BT_CHECK(from >= 0 && count >= 0 && from + count <= rows_);
  const int64_t hidden = encoder_->config().text_hidden;
  auto* const all = static_cast<float*>(const_cast<void*>(memory_.data()));
  return TensorView(all + from * hidden, DType::kF32, {count, hidden});
}

OpContext PictureMemory::Context() {
  return {.pool = pool_, .scratch = &scratch_, .staging = &staging_, .rank = ops_.rank};
}

// All ranks check all pictures, so that none of them waits for one that has refused its own.
Status PictureMemory::Begin(const PlannedEncode& encode) {
  layers_left_ = 0;
  batch_.reset();
  for (std::vector<Place>& places : places_) places.clear();
  std::vector<Picture> own;
  int64_t tokens = 0;  // of the own ones
  std::vector<int64_t> patches(places_.size());
  for (size_t i = 0; i < encode.pictures.size(); ++i) {
    const EncodedPicture& one = encode.pictures[i];
    const std::string& pixels = one.pixels.str();
    const Picture picture = {
        .grid = {.frames = one.frames, .rows = one.rows, .columns = one.columns},
        .pixels = {reinterpret_cast<const uint8_t*>(pixels.data()), pixels.size()}};
    const Status fits = encoder_->Check(picture);
    if (!fits.ok()) return InvalidArgument(fmt::format("picture {} {}", i, fits.message()));
    const int64_t rows = encoder_->config().tokens(picture.grid);
    if (one.rank < 0 || one.rank >= sharing_.ranks || one.place < 0 || one.place + rows > rows_) {
      return InvalidArgument(fmt::format("picture {} of {} rows has no place at {} on rank {}", i,
                                         rows, one.place, one.rank));
    }
    const auto rank = static_cast<size_t>(one.rank);
    patches[rank] += picture.grid.patches();
    if (patches[rank] > encoder_->patches_max()) {
      return InvalidArgument(fmt::format("{} patches at once; the encoder takes {}", patches[rank],
                                         encoder_->patches_max()));
    }
    places_[rank].push_back({.begin = one.place, .rows = static_cast<int32_t>(rows)});
    if (one.rank != sharing_.rank) continue;
    own.push_back(picture);
    tokens += rows;
  }
  layers_left_ = encoder_->config().layers + 1;
  if (own.empty()) return {};
  BT_ASSIGN_OR_RETURN(VisionBatch batch,
                      encoder_->Begin(own, TensorView(made_.data(), DType::kF32,
                                                      {tokens, encoder_->config().text_hidden})));
  batch_.emplace(std::move(batch));
  return {};
}

Status PictureMemory::Encode(std::span<const PlannedEncode> encodes) {
  const OpContext context = Context();
  // What was staged for layers of a step before may still be on its way.
  if (ops_.staging != nullptr) BT_RETURN_IF_ERROR(ops_.wait(context));
  staging_.Reset();
  for (const PlannedEncode& encode : encodes) {
    if (!encode.pictures.empty()) BT_RETURN_IF_ERROR(Begin(encode));
    if (layers_left_ < encode.layers) {
      return InvalidArgument(
          fmt::format("{} layers are asked of a batch of pictures that has {} left", encode.layers,
                      layers_left_));
    }
    if (batch_) batch_->Advance(context, encode.layers);
    layers_left_ -= encode.layers;
    if (layers_left_ > 0) continue;
    BT_RETURN_IF_ERROR(sharing_.ranks == 1 ? PutOwn() : PutAll());
    batch_.reset();
  }
  return {};
}

Status PictureMemory::Put(const void* from, int32_t row, int64_t rows) {
  const TensorView to = Rows(row, static_cast<int32_t>(rows));
  return ops_.memory->Copy(to.data, from, static_cast<size_t>(to.num_elements()) * sizeof(float));
}

Status PictureMemory::PutOwn() {
  const int64_t hidden = encoder_->config().text_hidden;
  const auto* from = static_cast<const float*>(made_.data());
  for (const Place& place : places_[0]) {
    BT_RETURN_IF_ERROR(Put(from, place.begin, place.rows));
    from += place.rows * hidden;
  }
  return {};
}

// Row i of each rank beside those of the others, up to the rows of the rank that has most; what a
// rank sends behind its last row nobody reads.
Status PictureMemory::PutAll() {
  const int64_t hidden = encoder_->config().text_hidden;
  std::vector<std::vector<int32_t>> rows_of(places_.size());
  size_t most = 0;
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    for (const Place& place : places_[rank]) {
      for (int32_t row = 0; row < place.rows; ++row) rows_of[rank].push_back(place.begin + row);
    }
    most = std::max(most, rows_of[rank].size());
  }
  const std::vector<int64_t> widths(places_.size(), hidden);
  const auto ranks = static_cast<int64_t>(places_.size());
  auto* const own = static_cast<float*>(made_.data());
  auto* const all = static_cast<float*>(gathered_.data());
  for (size_t first = 0; first < most;) {
    const size_t count = std::min<size_t>(sharing_.rows_max, most - first);
    const auto rows = static_cast<int64_t>(count);
    sharing_.ops->GatherColumns(
        Context(), TensorView(all, DType::kF32, {rows, ranks * hidden}),
        TensorView(own + static_cast<int64_t>(first) * hidden, DType::kF32, {rows, hidden}),
        widths);
    BT_RETURN_IF_ERROR(sharing_.ops->status());
    for (size_t rank = 0; rank < places_.size(); ++rank) {
      const size_t end = std::min(first + count, rows_of[rank].size());
      for (size_t row = first; row < end; ++row) {
        const auto at = static_cast<int64_t>(row - first) * ranks + static_cast<int64_t>(rank);
        BT_RETURN_IF_ERROR(Put(all + at * hidden, rows_of[rank][row], 1));
      }
    }
    first += count;
  }
  return {};
}

int64_t PictureMemory::bytes() const {
  return encoder_->bytes() +
         static_cast<int64_t>(memory_.bytes() + made_.bytes() + gathered_.bytes() +
                              scratch_.bytes_reserved() + staging_.bytes_reserved());
}

}  // namespace baltoro
