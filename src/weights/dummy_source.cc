#include "weights/dummy_source.h"

#include <cmath>
#include <cstring>

#include "weights/quant/form_tensors.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

// Activations after a norm are of size 1; these constants of the static form hold 4 of them.
constexpr float kInputScale = 4.0f / 127, kInputOffset = 3;

// What attention adds to a token is a mean over its context, so much the same for its neighbours.
// Were it the larger part of the hidden state, neighbours would choose the same experts; what an
// MLP adds is each token's own.
constexpr double kAttentionShare = 0.25;

// The root of the mean square of a matrix' elements.
double SizeOfElements(std::string_view name, int64_t inputs) {
  if (name.starts_with("model.embed_tokens")) return 1;  // one input is not 0
  const double size = 1 / std::sqrt(static_cast<double>(inputs));
  return name.ends_with("self_attn.o_proj.weight") ? kAttentionShare * size : size;
}

// The root of the mean square of evenly drawn codes.
double SizeOfCodes(WeightForm form) {
  switch (form) {
    case WeightForm::kFp8Block:
      return 107.5;  // of all bytes that are numbers
    case WeightForm::kInt8:
    case WeightForm::kInt8Static:
      return 73.47;  // of -127 to 127, and 0 for -128
    case WeightForm::kInt4Group:
    case WeightForm::kInt4:
      return 4.183;  // of -7 to 7, and 0 for -8
    case WeightForm::kF32:
    case WeightForm::kBf16:
      break;
  }
  BT_CHECK(false);
}

// The highest bit of all that are 0 of the parts of `word` that `high` has the highest bits of.
constexpr uint32_t ZeroParts(uint32_t word, uint32_t high) {
  return ~(((word & ~high) + ~high) | word | ~high);
}

// Four or eight codes, evenly drawn but for those that would make their mean another than 0: every
// output would have a part in common, which grows from layer to layer until all tokens are alike.
uint32_t Codes(WeightForm form, uint32_t word) {
  switch (form) {
    case WeightForm::kFp8Block: {
      // Bytes of 0x7F and 0xFF are not numbers: their lowest bit goes.
      const uint32_t ones = ((word & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
      return word & ~(ones >> 7);
    }
    case WeightForm::kInt8:
    case WeightForm::kInt8Static:
      return word ^ ZeroParts(word ^ 0x80808080u, 0x80808080u);
    case WeightForm::kInt4Group:  // stored with 8 added
      return word ^ ZeroParts(word, 0x88888888u);
    case WeightForm::kInt4:
      return word ^ ZeroParts(word ^ 0x88888888u, 0x88888888u);
    default:
      return word;
  }
}

template <typename T>
void Fill(std::vector<char>& bytes, int64_t count, T value) {
  bytes.resize(static_cast<size_t>(count) * sizeof(T));
  for (int64_t i = 0; i < count; ++i) std::memcpy(&bytes[i * sizeof(T)], &value, sizeof(T));
}

}  // namespace

uint32_t HashStream(std::string_view name, uint64_t seed) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  hash = MixBits(hash ^ static_cast<uint32_t>(seed));
  return MixBits(hash ^ static_cast<uint32_t>(seed >> 32));
}

std::optional<SourceTensor> DummySource::Find(std::string_view name,
                                              const std::vector<int64_t>& wanted) {
  return SourceTensor{.name = std::string(name),
                      .dtype = DType::kBf16,
                      .shape = wanted,
                      .handle = HashStream(name, seed_)};
}

Status DummySource::Read(const SourceTensor& tensor, int64_t row, TensorView out) const {
  BT_CHECK(out.rank == 2 && out.contiguous() && out.dtype == DType::kBf16);
  auto* to = out.as<Bf16>();
  const int64_t count = out.num_elements();
  if (tensor.shape.size() == 1) {
    // Norm weights are 1; a selection bias of the router is small and even.
    const float value = tensor.name.ends_with("bias") ? 0.0f : 1.0f;
    for (int64_t i = 0; i < count; ++i) to[i] = ToBf16(value);
    return {};
  }
  const auto seed = static_cast<uint32_t>(tensor.handle);
  const auto first = static_cast<uint32_t>(row * out.dim(1));
  const auto scale = static_cast<float>(std::sqrt(3.0) * SizeOfElements(tensor.name, out.dim(1)));
  for (int64_t i = 0; i < count; ++i) {
    // Finite, so the plain rounding will do; a NaN test would keep this from being vectorised.
    const auto bits =
        std::bit_cast<uint32_t>(HashUniform(seed, first + static_cast<uint32_t>(i)) * scale);
    to[i].bits = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
  return {};
}

WeightForm DummySource::FormOf(const SourceTensor& tensor) const {
  const std::string_view module = ModuleOf(tensor.name);
  return forms_ && IsProjection(module) ? forms_(module) : WeightForm::kBf16;
}

Result<StoredMatrix> DummySource::StoredAs(const SourceTensor& tensor) const {
  const WeightForm form = FormOf(tensor);
  if (!IsPlain(form)) {
    BT_CHECK(tensor.shape.size() == 2);
    const Status fits =
        CheckShape(form, {.outputs = tensor.shape[0], .inputs = tensor.shape[1], .slices = 1});
    if (!fits.ok()) return InvalidArgument(tensor.name + ": " + fits.message());
  }
  if (form != WeightForm::kInt8Static) return StoredMatrix{.form = form};
  return StoredMatrix{.form = form, .input_scale = kInputScale, .input_offset = kInputOffset};
}

Status DummySource::ReadStored(const SourceTensor& tensor,
                               int64_t row,
                               int64_t rows,
                               StoredBytes& out) const {
  const WeightForm form = FormOf(tensor);
  const int64_t k = tensor.shape[1];
  const bool halved = form == WeightForm::kInt4Group || form == WeightForm::kInt4;
  const int64_t per_byte = halved ? 2 : 1;
  const int64_t bytes = (rows * k + per_byte - 1) / per_byte;
  // Whole words of the stream, from the one that holds the first byte on.
  const auto seed = static_cast<uint32_t>(tensor.handle);
  const int64_t first = row * k / per_byte / 4;
  const int64_t skip = row * k / per_byte % 4;
  out.values.resize(static_cast<size_t>((skip + bytes + 3) / 4 * 4));
  for (int64_t i = 0; i < std::ssize(out.values) / 4; ++i) {
    const uint32_t word = Codes(form, MixBits(MixBits(static_cast<uint32_t>(first + i)) + seed));
    std::memcpy(&out.values[i * 4], &word, sizeof(word));
  }
  out.values.erase(out.values.begin(), out.values.begin() + skip);
  out.values.resize(static_cast<size_t>(bytes));

  const double scale = SizeOfElements(tensor.name, k) / SizeOfCodes(form);
  const auto narrow = static_cast<float>(scale);
  out.bias.clear();
  switch (form) {
    case WeightForm::kFp8Block:
      Fill(out.scales, (rows + 127) / 128 * ((k + 127) / 128), narrow);
      break;
    case WeightForm::kInt4Group:
      Fill(out.scales, rows * ((k + 31) / 32), ToBf16(narrow));
      break;
    case WeightForm::kInt8Static:
      Fill(out.scales, rows, narrow * kInputScale);
      for (int64_t r = 0; r < rows; ++r) {
        int32_t sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += static_cast<int8_t>(out.values[r * k + i]);
        out.bias.push_back(-static_cast<int32_t>(kInputOffset) * sum);
      }
      break;
    default:
      Fill(out.scales, rows, narrow);
  }
  return {};
}

}  // namespace baltoro
