#pragma once

// The sum over a token's experts in the FP8 down product with the sum (fp8_grouped_sum.cu): three
// warps of a block add up the shares of a chunk, [T k, 128] bf16 in the L2, and what `out` holds.
//
// The other warps wait for these three wherever the ring in the L2 is full, so instructions count:
// a token takes about 160, of which 68 are its sums. A token's shares lie together and come by one
// bulk copy, its part of `out` by another, into a ring of slots in shared memory: the 80 registers
// that the products leave have no room for two tokens added while two are under way, as INT4's have
// them (int4_down_add.cuh). Every place is carried along, with no division, and one comparison says
// that all eight shares exist. Where the next chunk has been written by then, its first tokens are
// asked for while the last ones of this chunk are added.

#include "ops/cuda/experts/down_reduce/grouped_sum.cuh"

namespace baltoro::cuda::grouped_sum {

// One lane of a warp, always the same. The compiler knows that it is one, and so takes the operands
// of its bulk copies without a loop over lanes.
__device__ __forceinline__ bool IsElected() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// A warp adds up a chunk of every kAddWarps-th token of the block, a lane four columns.
template <typename Out, typename Params>
struct CopyAdder {
  static constexpr int kOwnBytes = kSumColumns * static_cast<int>(sizeof(Out));

  // The next token to ask for.
  struct Asked {
    uint32_t slot;
    const char* shares;
    const Out* out;
    char* buffer;           // of `chunk`, number `turn`
    int left, chunk, turn;  // left: tokens of the chunk
    int free;               // slots
    int ready;              // chunks known to be written
    uint32_t seen;          // blocks that have written the next of them, as of some time ago
  };

  const Params& p;
  const uint32_t* held;              // of the warp's first token
  uint32_t begin, end;               // of the ring of slots
  int lane, first, each;             // token, tokens
  uint32_t share_bytes, share_step;  // of a token, likewise
  uint32_t told = 0;                 // barriers of chunks that may be read, of kPhases; 0: none

  // `held_shares`: of the block's tokens; `slots`: of all warps; `helped`: of the last tokens
  // others take care.
  __device__ __forceinline__
  CopyAdder(const Params& params, const uint32_t* held_shares, uint32_t slots, int helped = 0)
      : p(params) {
    const int warp = static_cast<int>(threadIdx.x) / 32 - 4 * kGroups - 1;
    lane = threadIdx.x % 32;
    held = held_shares + warp;
    first = FirstOf(p.tokens, blockIdx.x) + warp;
    const int last = FirstOf(p.tokens, blockIdx.x + 1) - helped;
    each = max(0, (last - first + kAddWarps - 1) / kAddWarps);
    share_bytes = p.top_k * kShareBytes;
    share_step = kAddWarps * share_bytes;
    begin = slots + warp * p.add_slots * SlotBytes(p.top_k);
    end = begin + p.add_slots * SlotBytes(p.top_k);
  }

  // Whether the ring begins again.
  __device__ __forceinline__ bool Next(uint32_t& slot) const {
    slot += kSharesAt + share_bytes;
    if (slot != end) return false;
    slot = begin;
    return true;
  }

  __device__ __forceinline__ Out* Row(int chunk) const {
    return static_cast<Out*>(p.out) + first * p.out_stride + chunk * kSumColumns;
  }

  // The next token's. Bytes that the host multiplied: otherwise the compiler does it for every
  // token.
  template <typename T>
  __device__ __forceinline__ T* NextRow(T* row) const {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(row) + p.add_step);
  }

  __device__ __forceinline__ void Ask(Asked& a) const {
    BarrierExpectBytes(a.slot, kOwnBytes + share_bytes);
    CopyPlain(a.slot + kSharesAt, a.shares, share_bytes, a.slot);
    CopyPlain(a.slot + 16, a.out, kOwnBytes, a.slot);
    --a.free;
    Next(a.slot);
    a.shares += share_step;
    a.out = NextRow(a.out);
    if (--a.left > 0) return;
    a.left = each;
    NextBuffer(p, a.turn, a.buffer);
    a.shares = a.buffer + first * static_cast<int64_t>(share_bytes);
    a.out = Row(++a.chunk);
  }

  // Asks for as many as there are free slots, at least one, and written chunks for; for one at
  // least if none is under way. A counter is looked at in one turn and asked for in the one before,
  // so that none waits for it where chunks are written early.
  __device__ __forceinline__ void AskAhead(Asked& a) const {
    if (a.chunk != a.ready) {  // nearly always, and then for one
      Ask(a);
      if (a.free == 0) return;
    }
    uint32_t turns = 0;
    do {
      if (a.chunk == a.ready) {
        if (a.ready == p.chunks) return;
        if (a.seen >= gridDim.x) {
          // Others wrote the shares by ordinary stores, which this orders; the copy engine reads
          // them.
          LoadAcquire(p.written + a.ready);
          hopper::FenceAsyncProxy();
          if (told != 0) BarrierArrive(told + a.ready % kPhases * 8);
          ++a.ready;
        }
        a.seen = LoadRelaxed(p.written + min(a.ready, p.chunks - 1));
        if (a.chunk == a.ready) {
          if (a.free < p.add_slots) return;
          __nanosleep(50);
          if (++turns == kPatience) __trap();
          continue;
        }
      }
      Ask(a);
    } while (a.free > 0);
  }

  __device__ __forceinline__ static float4 SumShares(uint32_t from, uint32_t exist) {
    uint2 shares[kTopKMax];
    if (exist == 0xff) {
#pragma unroll
      for (int j = 0; j < kTopKMax; ++j) shares[j] = LoadShared2(from + j * kShareBytes);
    } else {
#pragma unroll
      for (int j = 0; j < kTopKMax; ++j) {
        shares[j] = make_uint2(0, 0);
        if (exist >> j & 1) shares[j] = LoadShared2(from + j * kShareBytes);
      }
    }
    float4 sum = {};
#pragma unroll
    for (int j = 0; j < kTopKMax; ++j) AddShare(sum, shares[j]);
    return sum;
  }

  __device__ __forceinline__ static Four<Out> LoadBefore(uint32_t from) {
    if constexpr (kOwnBytes == kBeforeBytes) {
      const uint4 raw = LoadShared4(from);
      return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                         __uint_as_float(raw.w));
    } else {
      return LoadShared2(from);
    }
  }

  // Brings what a chunk is added to into the L2, for those that help too.
  __device__ __forceinline__ void Prefetch(int chunk) const {
    const int end_token = FirstOf(p.tokens, blockIdx.x + 1);
#pragma unroll 1
    for (int t = first + lane / 4 * kAddWarps; t < end_token; t += 8 * kAddWarps) {
      const Out* line = Row(chunk) + (t - first) * p.out_stride + lane % 4 * 32;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
    }
  }

  // leave(chunk), by all lanes: the warp has read its part of the chunk's shares.
  template <typename Leave>
  __device__ __forceinline__ void Run(const Leave& leave) const {
    Asked asked = {.slot = begin,
                   .shares = p.shares + first * static_cast<int64_t>(share_bytes),
                   .out = Row(0),
                   .buffer = p.shares,
                   .left = each,
                   .chunk = 0,
                   .turn = 0,
                   .free = p.add_slots,
                   .ready = 0,
                   .seen = 0};
    const uint32_t before_at = 16 + lane * 4 * sizeof(Out), shares_at = kSharesAt + lane * 8;
    uint32_t slot = begin;
    uint32_t parity = 0;
    Prefetch(0);
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      if (chunk + 1 < p.chunks) Prefetch(chunk + 1);
      Out* out = Row(chunk) + lane * 4;
      const uint32_t* exist = held;
#pragma unroll 1
      for (int left = each; left > 0; --left) {
        if (IsElected()) AskAhead(asked);
        __syncwarp();
        BarrierWait(slot, parity);
        const Four<Out> before = LoadBefore(slot + before_at);
        float4 sum = SumShares(slot + shares_at, *exist);
        AddBefore(sum, before);
        StoreFour(out, sum);
        hopper::FinishLoads();
        __syncwarp();
        ++asked.free;
        parity ^= static_cast<uint32_t>(Next(slot));
        out = NextRow(out);
        exist += kAddWarps;
      }
      leave(chunk);
    }
  }
};

}  // namespace baltoro::cuda::grouped_sum
