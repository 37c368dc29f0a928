// Packed here: plain forms row-major as they are; others as f32 codes [n, k], f32 scales
// [n, groups] and f32 biases [n].

#include "ops/reference/matrix_product.h"

#include <algorithm>
#include <cmath>

#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"
#include "tensor/float8.h"

namespace baltoro::reference {
namespace {

int64_t GroupOf(WeightForm form, int64_t k) {
  if (form == WeightForm::kFp8Block) return 128;
  if (form == WeightForm::kInt4Group) return 32;
  return k;
}

int64_t Groups(WeightForm form, int64_t k) {
  const int64_t group = GroupOf(form, k);
  return (k + group - 1) / group;
}

int SignedNibble(int nibble) {
  return nibble < 8 ? nibble : nibble - 16;
}

float Code(const StoredRows& src, int64_t row, int64_t i) {
  const auto* bytes = static_cast<const uint8_t*>(src.values);
  const int64_t at = row * src.k + i;
  switch (src.form) {
    case WeightForm::kFp8Block:
      return FromE4M3(bytes[at]);
    case WeightForm::kInt4Group:
      return static_cast<float>((bytes[at / 2] >> (at % 2 * 4) & 15) - 8);
    case WeightForm::kInt4:
      return static_cast<float>(SignedNibble(bytes[row / 2 * src.k + i] >> (row % 2 * 4) & 15));
    case WeightForm::kInt8:
    case WeightForm::kInt8Static:
      return static_cast<float>(static_cast<int8_t>(bytes[at]));
    case WeightForm::kF32:
    case WeightForm::kBf16:
      break;
  }
  BT_CHECK(false);
}

float Scale(const StoredRows& src, int64_t row, int64_t group, int64_t groups) {
  if (src.form == WeightForm::kInt4Group) {
    return ToFloat(static_cast<const Bf16*>(src.scales)[row * groups + group]);
  }
  const int64_t scale_row = src.form == WeightForm::kFp8Block ? row / 128 : row;
  return static_cast<const float*>(src.scales)[scale_row * groups + group];
}

double RoundToInt8(double x) {
  return std::clamp(std::nearbyint(x), -128.0, 127.0);
}

// The input as the form sees it, and what the sum of each group is multiplied by.
struct Input {
  std::vector<double> x;
  std::vector<double> scales;  // one a group
};

Input QuantisedInput(const std::vector<double>& x, const PackedMatrix& w) {
  const int64_t group = GroupOf(w.form, w.k);
  Input in{.x = x, .scales = std::vector<double>(static_cast<size_t>(Groups(w.form, w.k)), 1.0)};
  const auto largest = [&](int64_t begin, int64_t end) {
    double most = 0;
    for (int64_t i = begin; i < end; ++i) most = std::max(most, std::abs(x[i]));
    return most;
  };
  switch (w.form) {
    case WeightForm::kFp8Block:
      for (int64_t g = 0; w.quantise_input && g < std::ssize(in.scales); ++g) {
        const int64_t end = std::min(w.k, (g + 1) * group);
        const float scale = std::max(static_cast<float>(largest(g * group, end)), 1e-4f) / kE4M3Max;
        in.scales[g] = scale;
        for (int64_t i = g * group; i < end; ++i) {
          in.x[i] = FromE4M3(ToE4M3(static_cast<float>(x[i]) / scale));
        }
      }
      break;
    case WeightForm::kInt8:
    case WeightForm::kInt4: {
      const float scale = static_cast<float>(largest(0, w.k)) / 127;
      in.scales[0] = scale;
      for (double& value : in.x) {
        value = scale == 0 ? 0 : RoundToInt8(static_cast<float>(value) / scale);
      }
      break;
    }
    case WeightForm::kInt8Static:
      for (double& value : in.x) {
        value = RoundToInt8(static_cast<float>(value) / w.input_scale + w.input_offset);
      }
      break;
    case WeightForm::kInt4Group:
    case WeightForm::kF32:
    case WeightForm::kBf16:
      break;
  }
  return in;
}

}  // namespace

int64_t PackedBytes(WeightForm form, int64_t n, int64_t k) {
  if (IsPlain(form)) return n * k * SizeOf(PlainType(form));
  return n * (k + Groups(form, k) + 1) * static_cast<int64_t>(sizeof(float));
}

void PackRows(
    WeightForm form, void* dst, int64_t n, int64_t k, int64_t row_begin, const StoredRows& src) {
  BT_CHECK(src.k == k && row_begin >= 0 && row_begin + src.rows <= n);
  if (IsPlain(form)) {
    BT_CHECK(IsPlain(src.form));
    for (int64_t i = 0; i < src.rows * k; ++i) {
      Store(dst, PlainType(form), row_begin * k + i, Load(src.values, PlainType(src.form), i));
    }
    return;
  }
  BT_CHECK(src.form == form);
  const int64_t groups = Groups(form, k);
  float* codes = static_cast<float*>(dst) + row_begin * k;
  float* scales = static_cast<float*>(dst) + n * k + row_begin * groups;
  float* biases = static_cast<float*>(dst) + n * (k + groups) + row_begin;
  for (int64_t row = 0; row < src.rows; ++row) {
    for (int64_t i = 0; i < k; ++i) codes[row * k + i] = Code(src, row, i);
    for (int64_t g = 0; g < groups; ++g) scales[row * groups + g] = Scale(src, row, g, groups);
    biases[row] = src.bias == nullptr ? 0 : static_cast<float>(src.bias[row]);
  }
}

std::vector<double> MatrixProduct(const std::vector<double>& x, const PackedMatrix& w) {
  std::vector<double> y;
  if (IsPlain(w.form)) {
    for (int64_t o = 0; o < w.n; ++o) {
      y.push_back(Dot(x.data(), Widen(w.data, PlainType(w.form), o * w.k, w.k).data(), w.k));
    }
    return y;
  }
  const Input in = QuantisedInput(x, w);
  const int64_t group = GroupOf(w.form, w.k);
  const int64_t groups = Groups(w.form, w.k);
  const float* scales = static_cast<const float*>(w.data) + w.n * w.k;
  for (int64_t o = 0; o < w.n; ++o) {
    const std::vector<double> codes = Widen(w.data, DType::kF32, o * w.k, w.k);
    double sum = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * group;
      double part = Dot(in.x.data() + begin, codes.data() + begin, std::min(group, w.k - begin));
      if (w.form == WeightForm::kInt8Static) part += scales[w.n * groups + o];
      sum += part * in.scales[g] * scales[o * groups + g];
    }
    y.push_back(sum);
  }
  return y;
}

}  // namespace baltoro::reference
