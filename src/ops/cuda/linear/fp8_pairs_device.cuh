#pragma once

// Parts of the large form (fp8_pairs.cu): its shapes, the ring in shared memory, the order of
// pieces, and the copies that fill the ring.

#include <algorithm>

#include "ops/cuda/linear/fp8_pairs_store.cuh"

namespace baltoro::cuda::fp8_pairs {

// Waits until the phase of the given parity is complete; some seconds at most.
__device__ __forceinline__ void WaitBounded(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      ".reg .b32 tries;\n"
      "mov.b32 tries, 0;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "add.s32 tries, tries, 1;\n"
      "setp.lt.s32 done, tries, 100000000;\n"
      "@done bra again;\n"
      "trap;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ float LoadSharedFloat(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
  return v;
}

// Divides by the number of strips, which takes as long as a group of products otherwise. Exact as
// long as number * strips is below 2^31.
struct PerStrips {
  uint32_t factor;  // 2^31 / strips, rounded up
  static PerStrips Of(int64_t strips) {
    return {static_cast<uint32_t>(((int64_t{1} << 31) + strips - 1) / strips)};
  }
  __device__ __forceinline__ int Quotient(int number) const {
    return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(number)) * factor >> 31);
  }
};

// The pieces of a pair of blocks: of two tiles all strips before the next two, so that what is
// under way at a time shares rows of x and of weights in the L2.
struct Order {
  Pieces pieces;
  PerStrips per_strips;
  int first = 0, strip = 0;
  int part = 0, first_step = 0, steps;  // of the columns
  // `split`: the pair has half of the columns.
  __device__ __forceinline__ Order(const TileParams& p, PerStrips per, bool split)
      : pieces(p), per_strips(per), steps(p.steps) {
    if (split) {
      part = pieces.unit % 2;
      pieces.unit /= 2;
      pieces.step /= 2;
      const int of_first = StepsOfFirstHalf(steps);
      first_step = part * of_first;
      steps = part == 0 ? of_first : steps - of_first;
    }
    Place();
  }
  __device__ __forceinline__ void Place() {
    const int pair = per_strips.Quotient(pieces.unit);
    first = pair * 2;
    strip = pieces.unit - pair * pieces.strips;
  }
  __device__ __forceinline__ bool Done() const { return pieces.Done(); }
  __device__ __forceinline__ void Next() {
    pieces.Next();
    if (!pieces.Done()) Place();
  }
};

template <typename S>
struct PieceRing {
  uint32_t base;  // of the block's shared memory
  int stage = 0, scale_slot = 0;
  uint32_t parity = 0, scale_parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void NextScales() {
    if (++scale_slot == kScaleSlots) {
      scale_slot = 0;
      scale_parity ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t Weights() const { return base + stage * S::kStageBytes; }
  __device__ __forceinline__ uint32_t Input() const { return Weights() + S::kWeightBytes; }
  __device__ __forceinline__ uint32_t Scales() const {
    return base + S::kScales + scale_slot * S::kScaleBytes;
  }
  __device__ __forceinline__ uint32_t Full() const { return base + S::kBarriers + 8 * stage; }
  __device__ __forceinline__ uint32_t Empty() const { return Full() + 8 * S::kStages; }
  __device__ __forceinline__ uint32_t ScalesEmpty() const {
    return base + S::kBarriers + 8 * (2 * S::kStages + scale_slot);
  }
};

struct Maps {
  CUtensorMap weights, x, bands, x_scales;
};

// `bytes` at `from` and what is around them in whole 16 bytes.
struct Around {
  uint64_t from;
  uint32_t bytes;
  __device__ __forceinline__ Around(const float* first, uint32_t of)
      : from(reinterpret_cast<uint64_t>(first) / 16 * 16),
        bytes((static_cast<uint32_t>(reinterpret_cast<uint64_t>(first) - from) + of + 15) / 16 *
              16) {}
  __device__ __forceinline__ void Copy(uint32_t to, uint32_t barrier) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
  }
};

// First rows of the two halves of a piece's weights.
template <typename S>
__device__ __forceinline__ int2 HalfRows(const TileParams& p, int strip) {
  const int low = strip * (S::kGated ? 128 : S::kN);
  return make_int2(low, low + (S::kGated ? p.half : S::kN / 2));
}

// What the assembler knows to be the same in all lanes it moves to a uniform register at once, and
// so waits for a load that is for the next piece. Here it cannot know: `parts` is 1, none added.
__device__ __forceinline__ MoeTile LoadTileAhead(const TileParams& p, int at) {
  return LoadTile(p, at + (static_cast<int>(threadIdx.x) & (p.parts - 1)));
}

// The tiles of a pair of blocks, perhaps still under way.
struct TilePair {
  MoeTile one, two;
  __device__ __forceinline__ TilePair(const TileParams& p, const Order& order) {
    if (order.Done()) return;
    one = LoadTileAhead(p, order.first);
    two = LoadTileAhead(p, min(order.first + 1, order.pieces.tiles - 1));
  }
};

// The stage's barrier waits for `bytes` of scales; for its codes too, if these were not `asked`
// for.
template <typename S>
__device__ __forceinline__ void ExpectScales(uint32_t barrier, uint32_t bytes, bool asked) {
  if (!asked) return BarrierExpectBytes(barrier, S::kStageBytes + bytes);
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

template <typename S>
__device__ __forceinline__ void FetchScales(const TileParams& p,
                                            const Maps& maps,
                                            const PieceRing<S>& ring,
                                            int2 halves,
                                            int step,
                                            const MoeTile& tile,
                                            bool asked) {
  const uint32_t bands = ring.Scales() + S::kInputScales;
  if (p.steps >= kScaleSteps) {
    ExpectScales<S>(ring.Full(), (kTileRows + S::kN / 8) * kScaleRow, asked);
    hopper::CopyBox(ring.Scales(), &maps.x_scales, ring.Full(), step, tile.begin, 0);
    hopper::CopyBox(bands, &maps.bands, ring.Full(), step, halves.x / 8, tile.slot);
    if (!S::kGated) return;
    hopper::CopyBox(bands + S::kHalfScales, &maps.bands, ring.Full(), step, halves.y / 8,
                    tile.slot);
    return;
  }
  const int row_bytes = p.steps * 4, bands_there = (p.n + 7) / 8 - halves.x / 8;
  const auto* of_slot = reinterpret_cast<const float*>(p.scales + tile.slot * p.slot_bytes);
  const Around x(p.x_scales + static_cast<int64_t>(tile.begin) * p.steps,
                 min(kTileRows, p.rows - tile.begin) * row_bytes);
  const Around low(of_slot + halves.x / 8 * p.steps, min(S::kBands, bands_there) * row_bytes);
  const Around high(of_slot + halves.y / 8 * p.steps, S::kBands * row_bytes);  // gate and up
  ExpectScales<S>(ring.Full(), x.bytes + low.bytes + (S::kGated ? high.bytes : 0), asked);
  x.Copy(ring.Scales(), ring.Full());
  low.Copy(bands, ring.Full());
  if (S::kGated) high.Copy(bands + S::kHalfScales, ring.Full());
}

// Weights of a stage; of one tile pair's matrix half of them, for both blocks.
template <typename S>
__device__ __forceinline__ void FetchWeights(const Maps& maps,
                                             const PieceRing<S>& ring,
                                             const Order& order,
                                             int2 rows,
                                             int step,
                                             int slot,
                                             bool shared) {
  constexpr int kHalf = S::kWeightBytes / 2;
  const int rank = order.pieces.rank, column = (order.first_step + step) * 128;
  if (shared) {
    CopyBoxToPair(ring.Weights() + rank * kHalf, &maps.weights, ring.Full(), column,
                  rank == 0 ? rows.x : rows.y, slot, 3 << 2 * order.part);
    return;
  }
  hopper::CopyBox(ring.Weights(), &maps.weights, ring.Full(), column, rows.x, slot);
  hopper::CopyBox(ring.Weights() + kHalf, &maps.weights, ring.Full(), column, rows.y, slot);
}

// Of one matrix the first weights are asked for before the `wait` for the kernel ahead.
template <typename S, typename Wait>
__device__ __forceinline__ void Feed(
    const TileParams& p, const Maps& maps, Order order, PieceRing<S> ring, const Wait& wait) {
  const int rank = order.pieces.rank;
  int asked = 0;
  if (p.early_weights) {
    asked = min(S::kStages, order.steps);
    const int2 rows = HalfRows<S>(p, order.strip);
    PieceRing<S> stage = ring;
    for (int step = 0; step < asked; ++step, stage.Next()) {
      BarrierExpectBytes(stage.Full(), S::kStageBytes);
      FetchWeights<S>(maps, stage, order, rows, step, 0, true);
    }
    wait();
  }
  TilePair ahead(p, order);
  while (!order.Done()) {
    const MoeTile tile = rank == 0 ? ahead.one : ahead.two;
    const bool shared = ahead.one.slot == ahead.two.slot;
    const int2 rows = HalfRows<S>(p, order.strip);
    const Order here = order;
    order.Next();
    ahead = TilePair(p, order);
    for (int step = 0; step < here.steps; ++step, --asked) {
      WaitBounded(ring.Empty(), ring.parity ^ 1);
      if (step % kScaleSteps == 0) {
        WaitBounded(ring.ScalesEmpty(), ring.scale_parity ^ 1);
        FetchScales<S>(p, maps, ring, rows, here.first_step + step, tile, asked > 0);
        ring.NextScales();
      } else if (asked <= 0) {
        BarrierExpectBytes(ring.Full(), S::kStageBytes);
      }
      if (asked <= 0) FetchWeights<S>(maps, ring, here, rows, step, tile.slot, shared);
      // Rows of the next tile and zeros behind the last one: their results are not stored.
      hopper::CopyBox(ring.Input(), &maps.x, ring.Full(), (here.first_step + step) * 128,
                      tile.begin, 0);
      ring.Next();
    }
  }
}

// A thread's scales of a step: of its two rows of x, and of the units of weights unless they are
// `mixed`; `at`: the slot, at this step.
template <typename S>
struct StepScales {
  float x[2], units[S::kUnits];
  uint32_t at;
  bool mixed;
};

}  // namespace baltoro::cuda::fp8_pairs
