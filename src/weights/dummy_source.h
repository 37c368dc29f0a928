#pragma once

// Weights drawn from a seed instead of a file, such that routers choose all experts alike, at every
// depth: uniform around 0 with variance 1 / fan-in (embeddings 1, a sixteenth for the output of
// attention), norms 1, selection biases 0. The same seed gives the same weights on every machine
// and for every number of threads.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "weights/weight_source.h"

namespace baltoro {

// A hash of 32 bits in which every bit of the input reaches every bit of the output.
constexpr uint32_t MixBits(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
  return x;
}

// Element `index` of the stream `seed`: uniform in [-1, 1), a multiple of 2^-23.
constexpr float HashUniform(uint32_t seed, uint32_t index) {
  const uint32_t bits = MixBits(MixBits(index) + seed) >> 8;
  return static_cast<float>(static_cast<int32_t>(bits) - (1 << 23)) * 0x1p-23f;
}

// The stream of a name: FNV-1a of its bytes, mixed with the seed.
uint32_t HashStream(std::string_view name, uint64_t seed);

// The form that the matrix of a projection is to have, by its module's canonical name.
using FormOfModule = std::function<WeightForm(std::string_view module)>;

class DummySource final : public WeightSource {
 public:
  // Without `forms` every matrix is plain. A quantised matrix has codes of its own, of the same
  // variance: they are not those of the plain one, which Read gives.
  explicit DummySource(uint64_t seed, FormOfModule forms = nullptr)
      : seed_(seed), forms_(std::move(forms)) {}

  std::optional<SourceTensor> Find(std::string_view name,
                                   const std::vector<int64_t>& wanted) override;
  Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const override;
  Result<StoredMatrix> StoredAs(const SourceTensor& tensor) const override;
  Status ReadStored(const SourceTensor& tensor,
                    int64_t row,
                    int64_t rows,
                    StoredBytes& out) const override;
  std::string description() const override { return "dummy weights"; }

 private:
  WeightForm FormOf(const SourceTensor& tensor) const;

  uint64_t seed_;
  FormOfModule forms_;
};

}  // namespace baltoro
