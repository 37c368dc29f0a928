#include "ceilings.h"

#include <immintrin.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "device/buffer.h"
#include "ops/cpu/isa.h"

namespace baltoro::bench {
namespace {

constexpr int64_t kReadBytes = int64_t{2} << 30;
constexpr int64_t kChunk = int64_t{1} << 20;

// Sums 256 bytes at a time, four lines in flight beside those that are fetched 4 KiB ahead; past
// the end that is harmless.
__attribute__((target("avx2"))) int64_t ReadAll(const char* data, int64_t bytes) {
  __m256i sum[8] = {};
  for (int64_t at = 0; at < bytes; at += 256) {
    for (int i = 0; i < 4; ++i) _mm_prefetch(data + at + 4096 + i * 64, _MM_HINT_T0);
    for (int i = 0; i < 8; ++i) {
      const auto* half_line = reinterpret_cast<const __m256i*>(data + at + i * 32);
      sum[i] = _mm256_add_epi64(sum[i], _mm256_load_si256(half_line));
    }
  }
  for (int i = 1; i < 8; ++i) sum[0] = _mm256_add_epi64(sum[0], sum[i]);
  return _mm256_extract_epi64(sum[0], 0);
}

constexpr int64_t kLoops = 2000000;  // long enough for every thread to wake and take its part

// Four independent sums in tiles; returns the operations done.
__attribute__((target("avx512f,amx-tile,amx-bf16"))) double TileLoop() {
  struct alignas(64) Config {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < kLoops; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return static_cast<double>(kLoops) * 4 * 2 * 16 * 16 * 32;
}

// In the next three each sum begins with another number, or the compiler would keep one for all;
// `keep` stops it from dropping the loop.
__attribute__((target("avx512f,avx512bf16"))) double PairLoop(float* keep) {
  __m512 sum[12];
  for (int i = 0; i < 12; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  __m512bh x;
  std::memset(&x, 0, sizeof(x));
  for (int64_t i = 0; i < kLoops; ++i) {
    for (auto& s : sum) s = _mm512_dpbf16_ps(s, x, x);
  }
  for (const auto& s : sum) *keep += _mm512_cvtss_f32(s);
  return static_cast<double>(kLoops) * 12 * 2 * 32;
}

__attribute__((target("avx512f"))) double WideLoop(float* keep) {
  __m512 sum[12];
  for (int i = 0; i < 12; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(*keep);
  for (int64_t i = 0; i < kLoops; ++i) {
    for (auto& s : sum) s = _mm512_fmadd_ps(x, x, s);
  }
  for (const auto& s : sum) *keep += _mm512_cvtss_f32(s);
  return static_cast<double>(kLoops) * 12 * 2 * 16;
}

__attribute__((target("avx2,fma"))) double NarrowLoop(float* keep) {
  __m256 sum[12];
  for (int i = 0; i < 12; ++i) sum[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 x = _mm256_set1_ps(*keep);
  for (int64_t i = 0; i < kLoops; ++i) {
    for (auto& s : sum) s = _mm256_fmadd_ps(x, x, s);
  }
  for (const auto& s : sum) *keep += _mm256_cvtss_f32(s);
  return static_cast<double>(kLoops) * 12 * 2 * 8;
}

double ProductLoop(cpu::Isa isa, float* keep) {
  switch (isa) {
    case cpu::Isa::kAmx:
      return TileLoop();
    case cpu::Isa::kAvx512Bf16:
      return PairLoop(keep);
    case cpu::Isa::kAvx512:
      return WideLoop(keep);
    case cpu::Isa::kAvx2:
      return NarrowLoop(keep);
  }
  return 0;
}

}  // namespace

void UseIsaOfEnvironment() {
  const Status chosen = cpu::ChooseIsa(std::getenv("BALTORO_CPU"));
  if (chosen.ok()) return;
  const bool named = chosen.code() == Code::kInvalidArgument;
  fmt::print(stderr, "{}{}\n", named ? "BALTORO_CPU: " : "", chosen.message());
  std::exit(2);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void StreamRead(ThreadPool& pool, const void* data, int64_t bytes) {
  std::vector<int64_t> sums(static_cast<size_t>(pool.threads()));
  pool.ParallelFor((bytes + kChunk - 1) / kChunk, [&](int64_t item, int thread) {
    const int64_t at = item * kChunk;
    sums[static_cast<size_t>(thread)] +=
        ReadAll(static_cast<const char*>(data) + at, std::min(kChunk, bytes - at));
  });
  volatile int64_t sink = sums[0];
  (void)sink;
}

double MeasureReadGbps(ThreadPool& pool) {
  Buffer buffer = Buffer::Create(kReadBytes, "benchmark").value();
  std::memset(buffer.data(), 1, buffer.bytes());
  const Timing read = Time(5, [&](int) { StreamRead(pool, buffer.data(), kReadBytes); });
  return static_cast<double>(kReadBytes) / read.median * 1e-9;
}

double MeasureProductGflops(ThreadPool& pool) {
  const cpu::Isa isa = cpu::ActiveIsa();
  std::vector<double> flops(static_cast<size_t>(pool.threads()));
  const Timing products = Time(5, [&](int) {
    pool.ParallelFor(pool.threads(), [&](int64_t item, int) {
      float keep = 0;
      flops[static_cast<size_t>(item)] = ProductLoop(isa, &keep);
      volatile float sink = keep;
      (void)sink;
    });
  });
  double total = 0;
  for (const double one : flops) total += one;
  return total / products.best * 1e-9;
}

}  // namespace baltoro::bench
