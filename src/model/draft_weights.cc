#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "model/draft_config.h"
#include "weights/checkpoint_source.h"

// Weights of a draft by the names of the family: published drafts call their layer `midlayer` or
// `layers.0`, with and without `model.` before it.

namespace baltoro {
namespace {

constexpr std::string_view kLayer = "model.layers.0.";
constexpr std::string_view kModel = "model.";

// The names under which a draft's file may have a tensor of the family's name.
std::vector<std::string> NamesInFile(std::string_view name) {
  std::vector<std::string> names;
  if (name.starts_with(kLayer)) {
    const std::string rest(name.substr(kLayer.size()));
    names = {"midlayer." + rest, "layers.0." + rest, "model.midlayer." + rest, std::string(name)};
  } else {
    const std::string rest(name.starts_with(kModel) ? name.substr(kModel.size()) : name);
    names = {rest, std::string(kModel) + rest};
  }
  return names;
}

class DraftSource final : public WeightSource {
 public:
  // `head_width`: of heads of which queries and keys are stored with the halves of what is rotated
  // together apart; 0: there are none.
  DraftSource(std::unique_ptr<CheckpointSource> own, int64_t head_width, WeightSource& target)
      : own_(std::move(own)), head_width_(head_width), target_(target) {}

  std::optional<SourceTensor> Find(std::string_view name,
                                   const std::vector<int64_t>& wanted) override {
    const bool rotated = name.ends_with(".q_proj.weight") || name.ends_with(".k_proj.weight");
    for (const std::string& in_file : NamesInFile(name)) {
      auto found = own_->Find(in_file, wanted);
      if (found) return Keep(*own_, std::move(*found), rotated ? head_width_ : 0);
    }
    if (name != "model.embed_tokens.weight") return std::nullopt;
    auto found = target_.Find(name, wanted);
    if (!found) return std::nullopt;
    return Keep(target_, std::move(*found), 0);
  }
  Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const override {
    const Kept& kept = kept_[tensor.handle];
    if (kept.head_width == 0) return kept.source->Read(kept.tensor, row, out);
    for (int64_t i = 0; i < out.dim(0); ++i) {
      const int64_t in_head = (row + i) % kept.head_width, head = row + i - in_head;
      const int64_t from = head + in_head / 2 + in_head % 2 * kept.head_width / 2;
      BT_RETURN_IF_ERROR(kept.source->Read(kept.tensor, from, out.rows(i, 1)));
    }
    return {};
  }
  Result<StoredMatrix> StoredAs(const SourceTensor& tensor) const override {
    const Kept& kept = kept_[tensor.handle];
    auto stored = kept.source->StoredAs(kept.tensor);
    if (stored.ok() && kept.head_width > 0 && !IsPlain(stored.value().form)) {
      return InvalidArgument(fmt::format(
          "{}: tensor {} is quantised; the heads of a draft are taken in BF16 or F32 alone",
          description(), tensor.name));
    }
    return stored;
  }
  Status ReadStored(const SourceTensor& tensor,
                    int64_t row,
                    int64_t rows,
                    StoredBytes& out) const override {
    const Kept& kept = kept_[tensor.handle];
    return kept.source->ReadStored(kept.tensor, row, rows, out);
  }
  std::map<std::string, int64_t> UnusedKinds(int64_t layers) const override {
    std::map<std::string, int64_t> unused = own_->UnusedKinds(layers);
    for (const char* name : {"d2t", "t2d", "model.d2t", "model.t2d"}) unused.erase(name);
    return unused;
  }
  std::string description() const override { return own_->description(); }

 private:
  struct Kept {
    WeightSource* source;
    SourceTensor tensor;  // by its handle there
    int64_t head_width;   // above 0: rows of each head are put in order
  };
  SourceTensor Keep(WeightSource& source, SourceTensor found, int64_t head_width) {
    SourceTensor out = found;
    out.handle = kept_.size();
    kept_.push_back({&source, std::move(found), head_width});
    return out;
  }

  const std::unique_ptr<CheckpointSource> own_;
  const int64_t head_width_;
  WeightSource& target_;
  std::vector<Kept> kept_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> OpenDraftWeights(const std::string& dir,
                                                       const K2Config& draft,
                                                       WeightSource& target) {
  BT_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointSource> own, CheckpointSource::Open(dir));
  return std::unique_ptr<WeightSource>(
      std::make_unique<DraftSource>(std::move(own), draft.draft->head_width, target));
}

Result<std::vector<int32_t>> ReadDraftTokens(const std::string& dir, const K2Config& draft) {
  const int64_t count = draft.head_vocab();
  BT_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir));
  std::optional<SourceTensor> found;
  for (const char* name : {"d2t", "model.d2t"}) {
    if (!found) found = checkpoint.Find(name, {count});
  }
  if (!found) {
    if (count == draft.vocab) return std::vector<int32_t>();
    return InvalidArgument(
        fmt::format("{}: tensor d2t is missing; config.json has a draft_vocab_size of {} for a "
                    "vocabulary of {}",
                    dir, count, draft.vocab));
  }
  if (found->dtype != DType::kI64 || found->shape != std::vector<int64_t>{count}) {
    return InvalidArgument(fmt::format("{}: tensor d2t is not {} numbers of type I64", dir, count));
  }
  std::vector<int64_t> offsets(static_cast<size_t>(count));
  BT_RETURN_IF_ERROR(
      checkpoint.ReadBytes(*found, 0, offsets.data(), offsets.size() * sizeof(int64_t)));
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t offset = offsets[static_cast<size_t>(i)];
    if (offset < -i || offset >= draft.vocab - i) {
      return InvalidArgument(
          fmt::format("{}: d2t[{}] is {}, which leads out of the vocabulary of {} tokens", dir, i,
                      offset, draft.vocab));
    }
    tokens.push_back(static_cast<int32_t>(i + offset));
  }
  return tokens;
}

}  // namespace baltoro
