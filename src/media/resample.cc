#include "media/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baltoro {
namespace {

constexpr int kPrecisionBits = 32 - 8 - 2;
constexpr int kHalf = 1 << (kPrecisionBits - 1);
constexpr int kRows = 16;          // that are resampled side by side
constexpr int kBytes = 3 * kRows;  // that are summed side by side

// The taps of one pixel of the result: it is the sum over t of weights[t] * in[first + t].
struct Taps {
  int first = 0;
  int count = 0;
};

struct Filter {
  int weights_max = 0;  // of one pixel
  std::vector<Taps> taps;
  std::vector<int32_t> weights;  // [taps, weights_max]

  const int32_t* weights_of(int i) const {
    return weights.data() + static_cast<size_t>(i) * weights_max;
  }
};

double Bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

// The order of these operations is Pillow's: the last bits of the weights depend on it.
Filter MakeFilter(int in, int out) {
  const double scale = static_cast<double>(in) / out;
  const double stretch = std::max(scale, 1.0);
  const double support = 2.0 * stretch;
  const double inverse = 1.0 / stretch;
  Filter filter;
  filter.weights_max = static_cast<int>(std::ceil(support)) * 2 + 1;
  filter.taps.resize(out);
  filter.weights.assign(static_cast<size_t>(out) * filter.weights_max, 0);
  std::vector<double> exact(filter.weights_max);
  for (int i = 0; i < out; ++i) {
    const double center = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int count = std::min(in, static_cast<int>(center + support + 0.5)) - first;
    double sum = 0.0;
    for (int t = 0; t < count; ++t) {
      exact[t] = Bicubic((t + first - center + 0.5) * inverse);
      sum += exact[t];
    }
    int32_t* weights = filter.weights.data() + static_cast<size_t>(i) * filter.weights_max;
    for (int t = 0; t < count; ++t) {
      const double weight = sum != 0.0 ? exact[t] / sum : exact[t];
      weights[t] = static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kPrecisionBits));
    }
    filter.taps[i] = {first, count};
  }
  return filter;
}

uint8_t ToByte(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255));
}

// out[i] = the sum over t < count of weights[t] * in[t * stride + i], for kBytes bytes.
using SumTaps =
    void (*)(const uint8_t* in, size_t stride, const int32_t* weights, int count, uint8_t* out);

void SumTapsPlainly(
    const uint8_t* in, size_t stride, const int32_t* weights, int count, uint8_t* out) {
  int32_t sums[kBytes];
  std::fill_n(sums, kBytes, kHalf);
  for (int t = 0; t < count; ++t) {
    for (int i = 0; i < kBytes; ++i) sums[i] += in[t * stride + i] * weights[t];
  }
  for (int i = 0; i < kBytes; ++i) out[i] = ToByte(sums[i]);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void SumTapsAvx2(
    const uint8_t* in, size_t stride, const int32_t* weights, int count, uint8_t* out) {
  constexpr int kVectors = kBytes / 8;
  __m256i sums[kVectors];
  for (__m256i& sum : sums) sum = _mm256_set1_epi32(kHalf);
  for (int t = 0; t < count; ++t) {
    const __m256i weight = _mm256_set1_epi32(weights[t]);
    for (int v = 0; v < kVectors; ++v) {
      const auto* bytes = reinterpret_cast<const __m128i*>(in + t * stride + 8 * v);
      const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes));
      sums[v] = _mm256_add_epi32(sums[v], _mm256_mullo_epi32(wide, weight));
    }
  }
  for (int v = 0; v < kVectors; v += 2) {
    const __m256i low = _mm256_srai_epi32(sums[v], kPrecisionBits);
    const __m256i high = _mm256_srai_epi32(sums[v + 1], kPrecisionBits);
    // Both ways to narrow clamp, and work within halves of a vector, which the order undoes.
    const __m256i words = _mm256_packs_epi32(low, high);
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 0, 0, 0);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 8 * v),
                     _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, order)));
  }
}
#endif

SumTaps ChooseSumTaps(Vectors vectors) {
#if defined(__x86_64__)
  if (vectors == Vectors::kBest && __builtin_cpu_supports("avx2")) return SumTapsAvx2;
#else
  static_cast<void>(vectors);
#endif
  return SumTapsPlainly;
}

// kRows rows of `in` from `top` on, from pixel to pixel. `columns` holds [pixels, 3, kRows], so
// that the rows of a channel lie side by side and one weight serves them all. Where the picture has
// fewer rows the last one stands in for the others.
void ResampleRows(
    const Rgb& in, const Filter& filter, int top, SumTaps sum_taps, uint8_t* columns, Rgb& out) {
  const int rows = std::min(kRows, in.height - top);
  const uint8_t* from[kRows];
  for (int r = 0; r < kRows; ++r) from[r] = in.row(top + std::min(r, rows - 1));
  const size_t in_bytes = static_cast<size_t>(in.width) * 3;
  for (size_t i = 0; i < in_bytes; ++i) {
    for (int r = 0; r < kRows; ++r) columns[i * kRows + r] = from[r][i];
  }
  for (int x = 0; x < out.width; ++x) {
    const Taps taps = filter.taps[x];
    uint8_t pixels[kBytes];
    sum_taps(columns + static_cast<size_t>(taps.first) * kBytes, kBytes, filter.weights_of(x),
             taps.count, pixels);
    for (int r = 0; r < rows; ++r) {
      uint8_t* to = out.row(top + r) + 3 * static_cast<size_t>(x);
      for (int c = 0; c < 3; ++c) to[c] = pixels[c * kRows + r];
    }
  }
}

// Row `y` of the result from the rows of `in` that its taps name.
void ResampleColumns(const Rgb& in, const Filter& filter, int y, SumTaps sum_taps, Rgb& out) {
  const size_t bytes = static_cast<size_t>(in.width) * 3;
  const Taps taps = filter.taps[y];
  const int32_t* weights = filter.weights_of(y);
  const uint8_t* first = in.row(taps.first);
  uint8_t* to = out.row(y);
  size_t at = 0;
  for (; at + kBytes <= bytes; at += kBytes) {
    sum_taps(first + at, bytes, weights, taps.count, to + at);
  }
  for (; at < bytes; ++at) {
    int32_t sum = kHalf;
    for (int t = 0; t < taps.count; ++t) sum += first[t * bytes + at] * weights[t];
    to[at] = ToByte(sum);
  }
}

}  // namespace

Result<Rgb> ResampleBicubic(Rgb picture, int width, int height, Vectors vectors) {
  const SumTaps sum_taps = ChooseSumTaps(vectors);
  if (width != picture.width) {
    const Filter filter = MakeFilter(picture.width, width);
    BT_ASSIGN_OR_RETURN(Rgb out, Rgb::Make(width, picture.height));
    std::vector<uint8_t> columns(static_cast<size_t>(picture.width) * kBytes);
    for (int top = 0; top < picture.height; top += kRows) {
      ResampleRows(picture, filter, top, sum_taps, columns.data(), out);
    }
    picture = std::move(out);
  }
  if (height != picture.height) {
    const Filter filter = MakeFilter(picture.height, height);
    BT_ASSIGN_OR_RETURN(Rgb out, Rgb::Make(width, height));
    for (int y = 0; y < height; ++y) ResampleColumns(picture, filter, y, sum_taps, out);
    picture = std::move(out);
  }
  return picture;
}

}  // namespace baltoro
