// Joined operations, held to the operations that they join.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "device/cuda/device_info.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/rows/rows_test_support.h"
#include "tensor/float8.h"

namespace baltoro::cuda {
namespace {

using namespace rows_test;  // NOLINT

struct InputShape {
  int64_t q_lora, latent, rope, stride;
};

GPU_TEST(AttentionInputsTest, AreBitForBitThoseOfTheSeparateOperations) {
  Device device;
  std::mt19937_64 random(1);
  constexpr int64_t kPositions = 200;
  for (const InputShape& s :
       {InputShape{1536, 512, 64, 2112}, InputShape{128, 512, 64, 704}, InputShape{0, 512, 64, 576},
        InputShape{1536, 512, 64, 2120}, InputShape{20, 40, 8, 71}, InputShape{0, 130, 6, 136}}) {
    const int64_t pairs = kPositions * s.rope / 2;
    Tensor table(DType::kF32, 2, pairs);
    table.FillNormal(random, 1);
    const RopeTable rope = {.cos = table.device().row<float>(0),
                            .sin = table.device().row<float>(1),
                            .positions = kPositions,
                            .dim = s.rope};
    Tensor q_norm = Tensor::Vector(DType::kF32, std::max<int64_t>(s.q_lora, 1));
    Tensor kv_norm = Tensor::Vector(DType::kF32, s.latent);
    q_norm.FillNormal(random, 1);
    kv_norm.FillNormal(random, 1);
    for (const KvForm form : {KvForm::kBf16, KvForm::kFp8, KvForm::kFp8Groups}) {
      // Many rows of the family's widths go another way.
      for (const int64_t rows : {1, 3, 17, 129, 515}) {
        if (rows == 515 && s.q_lora != 1536) continue;
        const int64_t width = s.q_lora + s.latent + s.rope;
        Tensor joined(DType::kBf16, rows, width, s.stride);
        Tensor parts(DType::kBf16, rows, width, s.stride);
        joined.FillNormal(random, 1);
        std::ranges::copy(joined.bytes(), parts.bytes().begin());
        parts.ToDevice();
        const int64_t blocks = rows / 64 + 2;
        const int64_t token_bytes = KvTokenBytes(form, s.latent, s.rope);
        Tensor cache_a(DType::kI8, blocks * 64, token_bytes);
        Tensor cache_b(DType::kI8, blocks * 64, token_bytes);
        cache_a.ToDevice();
        cache_b.ToDevice();
        Tensor positions = Tensor::Vector(DType::kI32, rows);
        Tensor slots = Tensor::Vector(DType::kI64, rows);
        std::vector<int64_t> order(static_cast<size_t>(blocks * 64));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        for (int64_t i = 0; i < rows; ++i) {
          positions.host().as<int32_t>()[i] = static_cast<int32_t>(random() % kPositions);
          slots.host().as<int64_t>()[i] = i == 2 ? -1 : order[i];
        }
        if (rows > 5) positions.host().as<int32_t>()[5] = kPositions;  // outside the table
        positions.ToDevice();
        slots.ToDevice();
        KvLayerView cache{.data = cache_a.device().data,
                          .form = form,
                          .num_blocks = blocks,
                          .latent = s.latent,
                          .rope = s.rope,
                          .scale = 0.21f};
        AttentionInputs(device.ctx(), {.qkv_a = joined.device(),
                                       .q_norm = s.q_lora > 0 ? q_norm.device() : TensorView(),
                                       .kv_norm = kv_norm.device(),
                                       .positions = positions.device(),
                                       .slots = slots.device(),
                                       .rope = rope,
                                       .cache = cache,
                                       .eps = 1e-6f});
        cache.data = cache_b.device().data;
        const TensorView low = parts.device().columns(0, s.q_lora);
        const TensorView latent = parts.device().columns(s.q_lora, s.latent);
        const TensorView key = parts.device().columns(s.q_lora + s.latent, s.rope);
        TensorView heads = key;
        heads.rank = 3;
        heads.shape = {rows, 1, s.rope};
        heads.stride = {key.stride[0], s.rope, 1};
        if (s.q_lora > 0) RmsNorm(device.ctx(), low, low, q_norm.device(), 1e-6f);
        RmsNorm(device.ctx(), latent, latent, kv_norm.device(), 1e-6f);
        Rope(device.ctx(), heads, positions.device(), rope);
        KvWrite(device.ctx(), cache, latent, key, slots.device());
        device.Wait();
        char name[96];
        std::snprintf(name, sizeof(name), "inputs q %d R %d P %d form %d rows %d",
                      static_cast<int>(s.q_lora), static_cast<int>(s.latent),
                      static_cast<int>(s.rope), static_cast<int>(form), static_cast<int>(rows));
        ExpectSameBytes(std::string(name) + " cache", cache_a.FromDevice(), cache_b.FromDevice());
        // Beside the query, rows stay as they were.
        std::vector<char> want = joined.bytes();
        const std::vector<char> normed = parts.FromDevice();
        for (int64_t i = 0; i < rows; ++i) {
          std::copy_n(normed.begin() + i * s.stride * 2, s.q_lora * 2,
                      want.begin() + i * s.stride * 2);
        }
        ExpectSameBytes(std::string(name) + " rows", joined.FromDevice(), want);
      }
    }
  }
}

// Codes in the order of product_layout.h: of each four columns c the bytes are c, c+2, c+1, c+3.
GPU_TEST(AddRmsNormTest, QuantisesItsRowsWhereThereIsRoomForCodes) {
  Device device;
  std::mt19937_64 random(2);
  for (const int64_t width : {7168, 1024, 8192}) {
    Tensor weight = Tensor::Vector(DType::kF32, width);
    weight.FillNormal(random, 1);
    for (const int64_t rows : {1, 2, 3, 16, 17, 64, 128, 129}) {
      const int64_t groups = width / 128;
      Tensor delta(rows == 3 || rows == 129 ? DType::kBf16 : DType::kF32, rows, width);
      Tensor sum_a(DType::kF32, rows, width), sum_b(DType::kF32, rows, width);
      Tensor out_a(DType::kBf16, rows, width), out_b(DType::kBf16, rows, width);
      Tensor codes(DType::kU8, rows, width), scales(DType::kF32, rows, groups);
      delta.FillNormal(random, 1);
      sum_a.FillNormal(random, 1);
      std::ranges::copy(sum_a.bytes(), sum_b.bytes().begin());
      sum_b.ToDevice();
      // As AddRmsNorm writes them where there is room for codes.
      RoundedRows rounded = {
          .codes = codes.device().data, .scales = scales.device().as<float>(), .width = width};
      OpContext ctx = device.ctx();
      const Beside with{.rounded = &rounded};
      ctx.beside = &with;
      AddRmsNorm(ctx, out_a.device(), sum_a.device(), delta.device(), weight.device(), 1e-5f);
      GPU_EXPECT(rounded.of == out_a.device().data && rounded.rows == rows);
      AddRmsNorm(device.ctx(), out_b.device(), sum_b.device(), delta.device(), weight.device(),
                 1e-5f);
      device.Wait();
      const std::string name = "quantise " + std::to_string(rows) + " " + std::to_string(width);
      const std::vector<char> out = out_a.FromDevice();
      ExpectSameBytes(name + " residual", sum_a.FromDevice(), sum_b.FromDevice());
      ExpectSameBytes(name + " out", out, out_b.FromDevice());
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t g = 0; g < groups; ++g) {
          float largest = 1e-4f;
          const int64_t end = (g + 1) * 128;
          for (int64_t d = g * 128; d < end; ++d) {
            const auto at = static_cast<size_t>(t * width + d);
            largest = std::max(largest, std::fabs(ElementOf(out, DType::kBf16, at)));
          }
          const float scale = largest / 448;
          scales.Set(t, g, scale);
          for (int64_t d = g * 128; d < end; ++d) {
            const auto at = static_cast<size_t>(t * width + d);
            const size_t to = d % 4 == 1 ? at + 1 : d % 4 == 2 ? at - 1 : at;
            codes.bytes()[to] = static_cast<char>(ToE4M3(ElementOf(out, DType::kBf16, at) / scale));
          }
        }
      }
      ExpectSameBytes(name + " scales", scales.FromDevice(), scales.bytes());
      ExpectSameBytes(name + " codes", codes.FromDevice(), codes.bytes());
    }
  }
}

// What a norm of `rows` writes, in whatever number of rows it is asked for.
struct NormCase {
  int64_t rows, width, stride;
  DType delta;
  bool quantises, orders;
};

std::string NameOfCase(const NormCase& c) {
  return "norm " + std::to_string(c.rows) + " " + std::to_string(c.width) + " " +
         std::string(NameOf(c.delta)) + (c.quantises ? " with codes" : "") +
         (c.orders ? " ordered" : "");
}

// Norms of more than 16 rows go several ways: what rows are does not depend on it. What is written
// beside them changes nothing, of few rows either.
void ExpectNormInPieces(Device& device, std::mt19937_64& random, const NormCase& c) {
  // By clusters of two, of four, a block a row.
  constexpr int64_t kPieces[] = {64, 20, 100};
  const int64_t groups = c.width / 128;
  Tensor weight = Tensor::Vector(DType::kF32, c.width), delta(c.delta, c.rows, c.width, c.stride);
  Tensor sum(DType::kF32, c.rows, c.width, c.stride), sums(DType::kF32, c.rows, c.width, c.stride);
  Tensor out(DType::kBf16, c.rows, c.width, c.stride),
      outs(DType::kBf16, c.rows, c.width, c.stride);
  Tensor beside(DType::kBf16, c.rows, c.width), codes(DType::kU8, c.rows, c.width);
  Tensor scales(DType::kF32, c.rows, std::max<int64_t>(groups, 1));
  weight.FillNormal(random, 1);
  delta.FillNormal(random, 1);
  sum.FillNormal(random, 3);
  std::ranges::copy(sum.bytes(), sums.bytes().begin());
  for (Tensor* tensor : {&sums, &out, &outs, &beside, &codes, &scales}) tensor->ToDevice();

  OpContext ctx = device.ctx();
  RoundedRows rounded = {
      .codes = codes.device().data, .scales = scales.device().as<float>(), .width = c.width};
  OrderedRows ordered = {.data = beside.device().data};
  const Beside with{.rounded = c.quantises ? &rounded : nullptr,
                    .ordered = c.orders ? &ordered : nullptr};
  ctx.beside = &with;
  AddRmsNorm(ctx, out.device(), sum.device(), delta.device(), weight.device(), 1e-5f);
  GPU_EXPECT(!c.quantises || (rounded.of == out.device().data && rounded.rows == c.rows));
  GPU_EXPECT(!c.orders || (ordered.of == out.device().data && ordered.rows == c.rows &&
                           ordered.stride == c.stride));
  device.Wait();
  const std::vector<char> whole_codes = codes.FromDevice(), whole_scales = scales.FromDevice();
  codes.ToDevice();
  scales.ToDevice();
  // As norms of 256 rows and fewer, but never so few that a row is spread over eight blocks, which
  // adds in another order.
  int turn = 0;
  for (int64_t begin = 0; begin < c.rows; ++turn) {
    const int64_t left = c.rows - begin, piece_rows = kPieces[turn % std::size(kPieces)];
    const int64_t count = left < piece_rows + 17 ? left : piece_rows;
    const auto piece = [&](const Tensor& tensor) { return tensor.device().rows(begin, count); };
    RoundedRows room = {
        .codes = piece(codes).data, .scales = piece(scales).as<float>(), .width = c.width};
    const Beside codes_alone{.rounded = c.quantises ? &room : nullptr};
    OpContext piece_ctx = device.ctx();
    piece_ctx.beside = &codes_alone;
    AddRmsNorm(piece_ctx, piece(outs), piece(sums), piece(delta), weight.device(), 1e-5f);
    begin += count;
  }
  device.Wait();
  const std::string name = NameOfCase(c);
  const std::vector<char> rows = out.FromDevice();
  ExpectSameBytes(name + " residual", sum.FromDevice(), sums.FromDevice());
  ExpectSameBytes(name + " out", rows, outs.FromDevice());
  ExpectSameBytes(name + " codes", whole_codes, codes.FromDevice());
  ExpectSameBytes(name + " scales", whole_scales, scales.FromDevice());
  // matrix_order.cuh
  for (int64_t at = 0; c.orders && at < c.rows * c.width; ++at) {
    const int64_t row = at / c.width, column = at % c.width;
    const int64_t t = column % 32 / 8, q = column % 8 / 2, e = column % 2;
    const int64_t to = row * c.width + column - column % 32 + 8 * q + 2 * t + e;
    std::memcpy(beside.bytes().data() + to * 2, rows.data() + (row * c.stride + column) * 2, 2);
  }
  ExpectSameBytes(name + " in matrix order", beside.FromDevice(), beside.bytes());
}

GPU_TEST(NormTest, OfManyRowsIsThatOfItsRows) {
  Device device;
  std::mt19937_64 random(8);
  // Each block of the form for many rows comes to use its memory more than once.
  const int64_t many = std::max(257, 6 * Must(CurrentDeviceInfo()).multiprocessors + 5);
  for (const DType delta : {DType::kF32, DType::kBf16}) {
    for (const int64_t rows : {int64_t{9}, int64_t{24}, int64_t{40}, many}) {
      ExpectNormInPieces(device, random, {rows, 7168, 7168, delta, false, false});
      ExpectNormInPieces(device, random, {rows, 7168, 7168, delta, true, false});
      ExpectNormInPieces(device, random, {rows, 7168, 7176, delta, false, true});
    }
    ExpectNormInPieces(device, random, {many, 4104, 4112, delta, false, false});
  }
}

// The product to a rounding of f32 sums; the choice exactly that of the product's logits.
GPU_TEST(RouterTest, IsTheProductAndTheChoice) {
  Device device;
  std::mt19937_64 random(3);
  struct Shape {
    int64_t experts, width, stride;
    int32_t top_k;
  };
  for (const Shape& s : {Shape{384, 7168, 7168, 8}, Shape{16, 256, 264, 4}, Shape{37, 8, 8, 5},
                         Shape{64, 8192, 8192, 6}, Shape{256, 2048, 2048, 8}}) {
    Tensor w(DType::kBf16, s.experts, s.width), bias = Tensor::Vector(DType::kF32, s.experts);
    w.FillNormal(random, 1 / std::sqrt(static_cast<float>(s.width)));
    bias.FillNormal(random, 0.1f);
    const PackedMatrix packed = {.data = w.device().data, .n = s.experts, .k = s.width};
    const RouterParams params = {.experts = static_cast<int32_t>(s.experts), .top_k = s.top_k};
    for (const int64_t rows : {1, 2, 3, 16, 17, 64}) {
      Tensor x(DType::kBf16, rows, s.width, s.stride), logits(DType::kF32, rows, s.experts);
      Tensor ids(DType::kI32, rows, s.top_k), weights(DType::kF32, rows, s.top_k);
      x.FillNormal(random, 1);
      logits.ToDevice();
      device.scratch().Reset();
      Router(device.ctx(), ids.device(), weights.device(), logits.device(), x.device(), packed,
             bias.device(), params);
      device.Wait();
      const std::string name = "router E " + std::to_string(s.experts) + " H " +
                               std::to_string(s.width) + " rows " + std::to_string(rows);
      const PackedMatrix plain = {.data = w.host().data, .n = s.experts, .k = s.width};
      ReferenceSmallOps().linear({}, logits.host(), x.host(), plain);
      const std::vector<char> product = logits.FromDevice();
      ExpectNear(name + " logits", product, logits.bytes(), DType::kF32,
                 {.relative = 1e-5, .absolute = 1e-5});
      std::ranges::copy(product, logits.bytes().begin());
      ReferenceSmallOps().route({}, ids.host(), weights.host(), logits.host(), bias.host(), params);
      ExpectSameBytes(name + " ids", ids.FromDevice(), ids.bytes());
      ExpectNear(name + " weights", weights.FromDevice(), weights.bytes(), DType::kF32,
                 {.relative = 2e-7});
    }
  }
}

// Weights are asked for before the kernel ahead has ended; the rows must not be.
GPU_TEST(RouterTest, ReadsWhatTheKernelAheadWrote) {
  Device device;
  std::mt19937_64 random(4);
  constexpr int64_t kWidth = 7168, kExperts = 384, kRows = 4;
  Tensor w(DType::kBf16, kExperts, kWidth), norm = Tensor::Vector(DType::kF32, kWidth);
  Tensor x(DType::kF32, kRows, kWidth), normed(DType::kBf16, kRows, kWidth);
  Tensor logits(DType::kF32, kRows, kExperts), again(DType::kF32, kRows, kExperts);
  w.FillNormal(random, 0.02f);
  norm.FillNormal(random, 1);
  const PackedMatrix packed = {.data = w.device().data, .n = kExperts, .k = kWidth};
  for (int round = 0; round < 20; ++round) {
    x.FillNormal(random, 1);
    RmsNorm(device.ctx(), normed.device(), x.device(), norm.device(), 1e-5f);
    const auto plan = PlanRouterRows16(FactsOf(normed.device()), FactsOf(packed));
    RouterProduct(device.ctx(), plan.value(), logits.device(), normed.device(), packed);
    device.Wait();
    RouterProduct(device.ctx(), plan.value(), again.device(), normed.device(), packed);
    device.Wait();
    ExpectSameBytes("router after a norm", logits.FromDevice(), again.FromDevice());
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
