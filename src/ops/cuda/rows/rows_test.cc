// Embedding, copies of rows, norms, rotary embedding, the cache write and SwiGLU, held to the
// reference: the same views, so that whatever lies between strided rows must stay as it was.

#include <algorithm>
#include <limits>
#include <numeric>

#include "device/cuda/device_info.h"
#include "ops/cuda/rows/rows_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace rows_test;  // NOLINT

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DType kTypes[] = {DType::kBf16, DType::kF32};

std::string Named(std::string text, std::initializer_list<int64_t> shape, DType a, DType b) {
  for (const int64_t dim : shape) text.append(1, ' ').append(std::to_string(dim));
  return text.append(1, ' ').append(NameOf(a)).append(1, ' ').append(NameOf(b));
}

// Widths of the family, of a tiny model, and odd ones; the second is the stride.
constexpr int64_t kWidths[][2] = {{7168, 7168}, {1536, 2112}, {512, 2112}, {256, 256},
                                  {128, 704},   {37, 41},     {8, 8},      {9000, 9001}};

GPU_TEST(EmbedTest, RowsAreThoseOfTheTable) {
  Device device;
  std::mt19937_64 random(1);
  for (const DType type : kTypes) {
    for (const int64_t width : {7168, 256, 37}) {
      Tensor table(type, 101, width, width + (width == 37 ? 2 : 0));
      table.FillNormal(random, 1);
      for (const int64_t rows : kRowCounts) {
        Tensor ids = Tensor::Vector(DType::kI32, rows);
        for (int64_t i = 0; i < rows; ++i) {
          ids.host().as<int32_t>()[i] = static_cast<int32_t>(random() % 101);
        }
        ids.ToDevice();
        Tensor out(DType::kF32, rows, width, width + 4);
        out.ToDevice();
        Embed(device.ctx(), out.device(), table.device(), ids.device(), 0);
        device.Wait();
        ReferenceSmallOps().embed({}, out.host(), table.host(), ids.host(), 0);
        ExpectSameBytes(Named("embed", {rows, width}, type, DType::kF32), out.FromDevice(),
                        out.bytes());
      }
    }
  }
}

GPU_TEST(EmbedTest, IdsOutsideOfTheTableGiveZeros) {
  Device device;
  constexpr int32_t kFirst = 70;
  const std::vector<int32_t> kIds = {-1, 2, 69, 70, 73, 74};
  Tensor table(DType::kBf16, 4, 16), ids = Tensor::Vector(DType::kI32, std::ssize(kIds));
  Tensor out(DType::kF32, std::ssize(kIds), 16);
  std::mt19937_64 random(2);
  table.FillNormal(random, 1);
  std::ranges::copy(kIds, ids.host().as<int32_t>());
  ids.ToDevice();
  out.ToDevice();
  Embed(device.ctx(), out.device(), table.device(), ids.device(), kFirst);
  device.Wait();
  ReferenceSmallOps().embed({}, out.host(), table.host(), ids.host(), kFirst);
  ExpectSameBytes("embed from a first token on", out.FromDevice(), out.bytes());
  const std::vector<char> got = out.FromDevice();
  for (size_t i = 0; i < 16; ++i) {
    for (const size_t row : {0, 1, 2, 5}) {
      GPU_EXPECT(ElementOf(got, DType::kF32, row * 16 + i) == 0);
    }
  }
}

GPU_TEST(CopyRowsTest, GatherScatterAndClearAreThoseOfTheReference) {
  Device device;
  std::mt19937_64 random(3);
  for (const int64_t width : {7168, 256, 37}) {
    for (const int64_t rows : kRowCounts) {
      const int64_t few = (rows + 1) / 2;
      Tensor all(DType::kF32, rows, width), some(DType::kF32, few, width, width + 4);
      Tensor ids = Tensor::Vector(DType::kI32, few);
      std::vector<int32_t> order(static_cast<size_t>(rows));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::copy_n(order.begin(), few, ids.host().as<int32_t>());
      ids.ToDevice();
      const std::string name = Named("rows", {rows, width}, DType::kF32, DType::kF32);

      all.FillNormal(random, 1);
      some.ToDevice();
      GatherRows(device.ctx(), some.device(), all.device(), ids.device());
      device.Wait();
      ReferenceSmallOps().gather_rows({}, some.host(), all.host(), ids.host());
      ExpectSameBytes("gather " + name, some.FromDevice(), some.bytes());

      Tensor parts(DType::kBf16, rows, width), wide(DType::kF32, few, width);
      parts.FillNormal(random, 1);
      GatherRows(device.ctx(), wide.device(), parts.device(), ids.device());
      device.Wait();
      for (int64_t i = 0; i < few; ++i) {
        const auto* const part = parts.host().row<Bf16>(order[static_cast<size_t>(i)]);
        for (int64_t c = 0; c < width; ++c) wide.Set(i, c, ToFloat(part[c]));
      }
      ExpectSameBytes("gather of parts " + name, wide.FromDevice(), wide.bytes());

      Tensor rounded(DType::kBf16, few, width, 3 * width);
      rounded.ToDevice();
      GatherRows(device.ctx(), rounded.device(), all.device(), ids.device());
      device.Wait();
      ReferenceSmallOps().gather_rows({}, rounded.host(), all.host(), ids.host());
      ExpectSameBytes("rounded gather " + name, rounded.FromDevice(), rounded.bytes());

      some.FillNormal(random, 1);
      ScatterRows(device.ctx(), all.device(), some.device(), ids.device());
      device.Wait();
      ReferenceSmallOps().scatter_rows({}, all.host(), some.host(), ids.host());
      ExpectSameBytes("scatter " + name, all.FromDevice(), all.bytes());

      Clear(device.ctx(), all.device());
      device.Wait();
      ExpectSameBytes("clear " + name, all.FromDevice(), std::vector<char>(all.bytes().size()));
    }
  }
}

GPU_TEST(NormTest, IsThatOfTheReference) {
  Device device;
  std::mt19937_64 random(4);
  for (const auto& [width, stride] : kWidths) {
    Tensor weight = Tensor::Vector(DType::kF32, width);
    weight.FillNormal(random, 1);
    for (const int64_t rows : kRowCounts) {
      if (rows == 1000 && width > 1536) continue;  // the reference would take seconds
      for (const DType in : kTypes) {
        for (const DType to : kTypes) {
          Tensor x(in, rows, width, stride), out(to, rows, width, stride);
          x.FillNormal(random, rows % 2 == 0 ? 100.0f : 0.02f);
          out.ToDevice();
          RmsNorm(device.ctx(), out.device(), x.device(), weight.device(), 1e-5f);
          device.Wait();
          ReferenceSmallOps().rms_norm({}, out.host(), x.host(), weight.host(), 1e-5f);
          ExpectNear(Named("norm", {rows, width, stride}, in, to), out.FromDevice(), out.bytes(),
                     to, LimitsOf(to));
        }
      }
    }
  }
}

GPU_TEST(NormTest, InPlaceOnStridedRows) {
  Device device;
  std::mt19937_64 random(5);
  Tensor x(DType::kBf16, 17, 512, 2112), weight = Tensor::Vector(DType::kF32, 512);
  x.FillNormal(random, 1);
  weight.FillNormal(random, 1);
  RmsNorm(device.ctx(), x.device(), x.device(), weight.device(), 1e-6f);
  device.Wait();
  ReferenceSmallOps().rms_norm({}, x.host(), x.host(), weight.host(), 1e-6f);
  ExpectNear("norm in place", x.FromDevice(), x.bytes(), DType::kBf16, LimitsOf(DType::kBf16));
}

GPU_TEST(NormTest, WithASumIsThatOfTheReference) {
  Device device;
  std::mt19937_64 random(6);
  for (const auto& [width, stride] : kWidths) {
    Tensor weight = Tensor::Vector(DType::kF32, width);
    weight.FillNormal(random, 1);
    for (const int64_t rows : kRowCounts) {
      if (rows == 1000 && width > 1536) continue;
      for (const DType to : kTypes) {
        for (const DType part : kTypes) {
          if (part == DType::kBf16 && to != DType::kBf16) continue;
          Tensor x(DType::kF32, rows, width, stride), delta(part, rows, width);
          Tensor out(to, rows, width);
          x.FillNormal(random, 3);
          delta.FillNormal(random, 1);
          out.ToDevice();
          AddRmsNorm(device.ctx(), out.device(), x.device(), delta.device(), weight.device(),
                     1e-5f);
          device.Wait();
          ReferenceSmallOps().add_rms_norm({}, out.host(), x.host(), delta.host(), weight.host(),
                                           1e-5f);
          const std::string name = Named("add norm", {rows, width, stride}, part, to);
          ExpectSameBytes(name + " residual", x.FromDevice(), x.bytes());
          ExpectNear(name, out.FromDevice(), out.bytes(), to, LimitsOf(to));
        }
      }
    }
  }
}

GPU_TEST(NormTest, NaNStaysInItsRowAndRowsAreWhatTheyAreAlone) {
  Device device;
  std::mt19937_64 random(7);
  constexpr int64_t kRows = 9, kWidth = 1536;
  Tensor weight = Tensor::Vector(DType::kF32, kWidth);
  weight.FillNormal(random, 1);
  Tensor x(DType::kF32, kRows, kWidth), out(DType::kBf16, kRows, kWidth);
  x.FillNormal(random, 1);
  out.ToDevice();
  RmsNorm(device.ctx(), out.device(), x.device(), weight.device(), 1e-5f);
  device.Wait();
  std::vector<char> together = out.FromDevice();
  x.Set(4, 77, kNaN);
  x.ToDevice();
  RmsNorm(device.ctx(), out.device(), x.device(), weight.device(), 1e-5f);
  device.Wait();
  std::vector<char> spoiled = out.FromDevice();
  const auto row_bytes = static_cast<size_t>(kWidth) * 2;
  GPU_EXPECT(std::isnan(ElementOf(spoiled, DType::kBf16, 4 * kWidth + 3)));
  std::fill_n(spoiled.begin() + 4 * row_bytes, row_bytes, char{0});
  std::fill_n(together.begin() + 4 * row_bytes, row_bytes, char{0});
  ExpectSameBytes("rows beside NaN", spoiled, together);
  for (int64_t row = 0; row < kRows; ++row) {
    if (row == 4) continue;
    RmsNorm(device.ctx(), out.device().rows(row, 1), x.device().rows(row, 1), weight.device(),
            1e-5f);
  }
  device.Wait();
  std::vector<char> alone = out.FromDevice();
  std::fill_n(alone.begin() + 4 * row_bytes, row_bytes, char{0});
  ExpectSameBytes("rows alone", alone, together);
}

// A table that no formula hides: random angles.
struct Table {
  Table(std::mt19937_64& random, int64_t positions, int64_t dim)
      : values(DType::kF32, 2, positions * dim / 2) {
    for (int64_t i = 0; i < positions * dim / 2; ++i) {
      const double angle = static_cast<double>(random() % 100000) * 1e-3;
      values.Set(0, i, static_cast<float>(1.2 * std::cos(angle)));
      values.Set(1, i, static_cast<float>(1.2 * std::sin(angle)));
    }
    values.ToDevice();
    host = {.cos = values.host().row<float>(0),
            .sin = values.host().row<float>(1),
            .positions = positions,
            .dim = dim};
    device = host;
    device.cos = values.device().row<float>(0);
    device.sin = values.device().row<float>(1);
  }
  Tensor values;
  RopeTable host, device;
};

// [rows, width] seen as [rows, heads, `dim`] from column `begin` of each head.
TensorView HeadsOf(const TensorView& x, int64_t heads, int64_t begin, int64_t dim) {
  TensorView view = x;
  view.rank = 3;
  view.shape = {x.dim(0), heads, x.dim(1) / heads};
  view.stride = {x.stride[0], x.dim(1) / heads, 1};
  return view.columns(begin, dim);
}

GPU_TEST(RopeTest, IsThatOfTheReference) {
  Device device;
  std::mt19937_64 random(8);
  struct Shape {
    int64_t heads, head_width, begin, dim, stride;
  };
  for (const Shape& s :
       {Shape{64, 192, 128, 64, 12288}, Shape{8, 192, 128, 64, 1536}, Shape{1, 64, 0, 64, 2112},
        Shape{64, 128, 0, 128, 24576}, Shape{4, 64, 0, 64, 512}, Shape{3, 21, 5, 10, 64},
        Shape{2, 6, 0, 6, 13}}) {
    Table table(random, 300, s.dim);
    for (const int64_t rows : kRowCounts) {
      if (rows == 1000 && s.heads == 64) continue;
      for (const DType type : kTypes) {
        Tensor x(type, rows, s.heads * s.head_width, s.stride);
        Tensor positions = Tensor::Vector(DType::kI32, rows);
        x.FillNormal(random, 1);
        for (int64_t i = 0; i < rows; ++i) {
          positions.host().as<int32_t>()[i] = static_cast<int32_t>(random() % 300);
        }
        positions.ToDevice();
        Rope(device.ctx(), HeadsOf(x.device(), s.heads, s.begin, s.dim), positions.device(),
             table.device);
        device.Wait();
        ReferenceSmallOps().rope({}, HeadsOf(x.host(), s.heads, s.begin, s.dim), positions.host(),
                                 table.host);
        Limits limits = LimitsOf(type);
        limits.absolute = 2e-6;  // where the two products cancel
        ExpectNear(Named("rope", {rows, s.heads, s.dim}, type, type), x.FromDevice(), x.bytes(),
                   type, limits);
      }
    }
  }
}

GPU_TEST(KvWriteTest, EveryFormIsThatOfTheReference) {
  Device device;
  std::mt19937_64 random(9);
  struct Shape {
    int64_t latent, rope, stride;
  };
  for (const Shape& s :
       {Shape{512, 64, 2112}, Shape{512, 64, 704}, Shape{128, 16, 144}, Shape{40, 8, 48},
        Shape{130, 6, 137}, Shape{21, 2, 23}, Shape{128, 128, 512}, Shape{4224, 4224, 12672}}) {
    for (const KvForm form : {KvForm::kBf16, KvForm::kFp8, KvForm::kFp8Groups, KvForm::kF32}) {
      for (const int64_t rows : kRowCounts) {
        if (rows == 1000 && s.latent > 4096) continue;
        Tensor x(DType::kBf16, rows, s.latent + s.rope, s.stride);
        x.FillNormal(random, rows % 2 == 0 ? 200.0f : 1.0f);
        // A row of values at the edges of the format, one of zeros, and one with NaN.
        const float edges[] = {448,     464,      1e9f,           kInfinity,
                               0x1p-9f, 0x1p-10f, 1.5f * 0x1p-9f, 1e-39f};
        for (int64_t d = 0; rows > 2 && d < s.latent + s.rope; ++d) {
          x.Set(0, d, d % 2 == 0 ? edges[d / 2 % 8] : -edges[d / 2 % 8]);
          x.Set(1, d, 0);
        }
        if (rows > 2) x.Set(2, 5, kNaN);
        x.ToDevice();
        const int64_t blocks = rows / 64 + 2;
        const int64_t bytes = KvTokenBytes(form, s.latent, s.rope);
        Tensor cache(DType::kI8, blocks * 64, bytes);
        cache.ToDevice();
        Tensor slots = Tensor::Vector(DType::kI64, rows);
        std::vector<int64_t> order(static_cast<size_t>(blocks * 64));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        std::copy_n(order.begin(), rows, slots.host().as<int64_t>());
        slots.host().as<int64_t>()[rows - 1] = -1;  // padding is written nowhere
        slots.ToDevice();
        KvLayerView view{.data = cache.device().data,
                         .form = form,
                         .num_blocks = blocks,
                         .latent = s.latent,
                         .rope = s.rope,
                         .scale = 0.37f};
        KvWrite(device.ctx(), view, x.device().columns(0, s.latent),
                x.device().columns(s.latent, s.rope), slots.device());
        device.Wait();
        view.data = cache.host().data;
        const TensorView real = x.host().rows(0, rows - 1);
        TensorView real_slots = slots.host();
        real_slots.shape[0] = rows - 1;
        ReferenceSmallOps().kv_write({}, view, real.columns(0, s.latent),
                                     real.columns(s.latent, s.rope), real_slots);
        std::vector<char> got = cache.FromDevice(), want = cache.bytes();
        if (form == KvForm::kFp8 || form == KvForm::kFp8Groups) {
          // The sign of a NaN is nobody's.
          for (std::vector<char>* side : {&got, &want}) {
            for (int64_t t = 0; t < blocks * 64; ++t) {
              for (int64_t d = 0; d < s.latent + (form == KvForm::kFp8 ? s.rope : 0); ++d) {
                char& code = (*side)[static_cast<size_t>(t * bytes + d)];
                if ((code & 0x7F) == 0x7F) code = 0x7F;
              }
            }
          }
        }
        const std::string name = Named("kv write " + std::to_string(static_cast<int>(form)),
                                       {rows, s.latent, s.rope}, DType::kBf16, DType::kU8);
        if (form == KvForm::kBf16) {
          ExpectNear(name, got, want, DType::kBf16, {});  // but for the bits of a NaN
        } else {
          ExpectSameBytes(name, got, want);
        }
      }
    }
  }
}

GPU_TEST(SwigluTest, IsThatOfTheReference) {
  Device device;
  std::mt19937_64 random(10);
  for (const int64_t width : {256, 2048, 18432, 768, 37}) {
    for (const int64_t rows : kRowCounts) {
      if (rows == 1000 && width > 2048) continue;
      for (const DType in : kTypes) {
        Tensor x(in, rows, 2 * width, 2 * width + (rows == 3 ? 8 : 0));
        Tensor out(DType::kBf16, rows, width);
        x.FillNormal(random, rows == 17 ? 60.0f : 2.0f);
        out.ToDevice();
        Swiglu(device.ctx(), out.device(), x.device());
        device.Wait();
        ReferenceSmallOps().swiglu({}, out.host(), x.host());
        Limits limits = LimitsOf(DType::kBf16);
        limits.absolute = 1e-33;  // where exp(-gate) is beyond f32
        ExpectNear(Named("swiglu", {rows, width}, in, DType::kBf16), out.FromDevice(), out.bytes(),
                   DType::kBf16, limits);
      }
    }
  }
}

GPU_TEST(RowsTest, NoRowsAreNoWork) {
  Device device;
  Tensor x(DType::kF32, 1, 64), out(DType::kBf16, 1, 64), ids = Tensor::Vector(DType::kI32, 1);
  Tensor weight = Tensor::Vector(DType::kF32, 64);
  x.ToDevice();
  const TensorView none = x.device().rows(0, 0);
  TensorView no_ids = ids.device();
  no_ids.shape[0] = 0;
  Embed(device.ctx(), none, x.device(), no_ids, 0);
  GatherRows(device.ctx(), none, x.device(), no_ids);
  Clear(device.ctx(), none);
  RmsNorm(device.ctx(), out.device().rows(0, 0), none, weight.device(), 1e-5f);
  AddRmsNorm(device.ctx(), out.device().rows(0, 0), none, none, weight.device(), 1e-5f);
  device.Wait();
  ExpectSameBytes("no rows", x.FromDevice(), x.bytes());
}

// What a captured step replays: every operation in one graph, on other data than it was recorded
// with.
GPU_TEST(RowsTest, AGraphOfThemComputesWithTheDataOfItsLaunch) {
  Device device;
  std::mt19937_64 random(11);
  constexpr int64_t kRows = 5, kWidth = 256;
  Tensor table(DType::kBf16, 50, kWidth), ids = Tensor::Vector(DType::kI32, kRows);
  Tensor weight = Tensor::Vector(DType::kF32, kWidth);
  Tensor residual(DType::kF32, kRows, kWidth), out(DType::kBf16, kRows, kWidth);
  Tensor gated(DType::kBf16, kRows, kWidth / 2);
  table.FillNormal(random, 1);
  weight.FillNormal(random, 1);
  ids.ToDevice();
  const auto step = [&] {
    Embed(device.ctx(), residual.device(), table.device(), ids.device(), 0);
    RmsNorm(device.ctx(), out.device(), residual.device(), weight.device(), 1e-5f);
    Swiglu(device.ctx(), gated.device(), out.device());
  };
  for (int64_t i = 0; i < kRows; ++i) ids.host().as<int32_t>()[i] = 0;
  ids.ToDevice();
  const std::unique_ptr<OpGraph> graph = Capture(device.ctx(), step);
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < kRows; ++i) {
      ids.host().as<int32_t>()[i] = static_cast<int32_t>(random() % 50);
    }
    ids.ToDevice();
    graph->Launch(device.ctx());
    device.Wait();
    ReferenceSmallOps().embed({}, residual.host(), table.host(), ids.host(), 0);
    ReferenceSmallOps().rms_norm({}, out.host(), residual.host(), weight.host(), 1e-5f);
    ExpectNear("graph norm", out.FromDevice(), out.bytes(), DType::kBf16, LimitsOf(DType::kBf16));
    // What comes next reads what the GPU rounded.
    std::ranges::copy(out.FromDevice(), out.bytes().begin());
    ReferenceSmallOps().swiglu({}, gated.host(), out.host());
    ExpectNear("graph swiglu", gated.FromDevice(), gated.bytes(), DType::kBf16,
               LimitsOf(DType::kBf16));
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
