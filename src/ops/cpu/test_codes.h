#pragma once

// For the tests of this folder: matrices of codes as a checkpoint stores them, packed for the
// operation under test and for the reference.

#include <string>
#include <utility>
#include <vector>

#include "ops/cpu/test_tensors.h"
#include "tensor/float8.h"

namespace baltoro::cpu::test {

inline constexpr WeightForm kCodedForms[] = {WeightForm::kInt4Group, WeightForm::kFp8Block,
                                             WeightForm::kInt8Static, WeightForm::kInt8,
                                             WeightForm::kInt4};

// Random rows of one form with scales that make products of inputs near 1 come out near 1.
// kInt4Group wants a k that is a multiple of 8.
class CodedRows {
 public:
  CodedRows(uint32_t seed, WeightForm form, int64_t rows, int64_t k) : engine_(seed) {
    stored_ = {.form = form, .rows = rows, .k = k};
    const bool nibbles = form == WeightForm::kInt4Group || form == WeightForm::kInt4;
    values_.resize(static_cast<size_t>(nibbles ? (rows + 1) / 2 * k : rows * k));
    for (uint8_t& value : values_) {
      value = static_cast<uint8_t>(engine_());
      // Nothing of 2 or more, so that subnormal codes count.
      if (form == WeightForm::kFp8Block) value = static_cast<uint8_t>(value & 0xBF);
    }
    stored_.values = values_.data();
    const float spread = form == WeightForm::kFp8Block ? 0.6f : nibbles ? 4.6f : 74.0f;
    const float scale = 1 / (spread * std::sqrt(static_cast<float>(k)));
    const int64_t blocks = (k + 127) / 128;
    switch (form) {
      case WeightForm::kInt4Group:
        for (int64_t i = 0; i < rows * ((k + 31) / 32); ++i) {
          small_scales_.push_back(ToBf16(scale * Even()));
        }
        stored_.scales = small_scales_.data();
        return;
      case WeightForm::kFp8Block:
        for (int64_t i = 0; i < (rows + 127) / 128 * blocks; ++i) {
          scales_.push_back(scale * Even());
        }
        break;
      default:
        for (int64_t i = 0; i < rows; ++i) scales_.push_back(scale * Even());
    }
    stored_.scales = scales_.data();
    if (form == WeightForm::kInt8Static) {
      for (int64_t i = 0; i < rows; ++i) {
        biases_.push_back(static_cast<int32_t>(engine_() % 20000) - 10000);
      }
      stored_.bias = biases_.data();
    }
  }
  CodedRows(const CodedRows&) = delete;
  CodedRows& operator=(const CodedRows&) = delete;

  const StoredRows& stored() const { return stored_; }

  // Rows [begin, begin + count): of kInt4 begin even, of kFp8Block begin a multiple of 128.
  StoredRows Range(int64_t begin, int64_t count) const {
    StoredRows part = stored_;
    const int64_t k = stored_.k;
    const bool nibbles =
        stored_.form == WeightForm::kInt4Group || stored_.form == WeightForm::kInt4;
    part.rows = count;
    part.values = values_.data() + (nibbles ? begin * k / 2 : begin * k);
    if (stored_.form == WeightForm::kInt4Group) {
      part.scales = small_scales_.data() + begin * ((k + 31) / 32);
    } else if (stored_.form == WeightForm::kFp8Block) {
      part.scales = scales_.data() + begin / 128 * ((k + 127) / 128);
    } else {
      part.scales = scales_.data() + begin;
    }
    if (stored_.bias != nullptr) part.bias = biases_.data() + begin;
    return part;
  }

 private:
  float Even() { return 0.5f + static_cast<float>(engine_() % 1024) / 1024; }

  std::mt19937 engine_;
  StoredRows stored_;
  std::vector<uint8_t> values_;
  std::vector<float> scales_;
  std::vector<Bf16> small_scales_;
  std::vector<int32_t> biases_;
};

// `count` matrices [n, k] of a form, packed both ways.
struct CodedWeights {
  Buffer memory, reference_memory;
  PackedMatrix packed, reference;

  CodedWeights(uint32_t seed, WeightForm form, int64_t count, int64_t n, int64_t k) {
    packed = {.form = form, .n = n, .k = k, .count = count};
    if (form == WeightForm::kInt8Static) {
      packed.input_scale = 0.031f;
      packed.input_offset = -7;
    }
    reference = packed;
    packed.stride_bytes = PackedBytes(form, n, k);
    reference.stride_bytes = ReferenceOps().packed_bytes(form, n, k);
    memory = Buffer::Create(static_cast<size_t>(count * packed.stride_bytes), "test").value();
    reference_memory =
        Buffer::Create(static_cast<size_t>(count * reference.stride_bytes), "test").value();
    packed.data = memory.data();
    reference.data = reference_memory.data();
    for (int64_t i = 0; i < count; ++i) {
      const CodedRows rows(seed + static_cast<uint32_t>(i), form, n, k);
      PackRows(form, const_cast<void*>(packed.at(i).data), n, k, 0, rows.stored());
      ReferenceOps().pack_rows(form, const_cast<void*>(reference.at(i).data), n, k, 0,
                               rows.stored());
    }
  }
};

}  // namespace baltoro::cpu::test
