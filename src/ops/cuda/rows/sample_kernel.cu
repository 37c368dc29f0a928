#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/rows/sample_select.cuh"

namespace baltoro::cuda {
namespace sampling {
namespace {

constexpr int32_t kAnyId = 0x7FFFFFFF;

struct Params {
  const float* logits;
  int64_t stride;
  int vocab, slice;
  const SampleWant* wants;
  const uint32_t* words;
  SampleAnswer* answers;
  SampleTop* tops;
  int32_t* tokens;
  int top_max;
  bool vectors;
};

// The best element, and the lowest logit that is not excluded.
struct Extremes {
  uint64_t best = 0;
  float lowest = INFINITY;

  __device__ void Add(float x, int32_t id) {
    best = max(best, RankOf(x, id));
    if (x > -INFINITY) lowest = fminf(lowest, x);
  }
  // Over the cluster; whether `bad` is true in any thread.
  __device__ bool Reduce(Row& row, bool bad) {
    uint64_t values[3] = {best, KeyOf(lowest), bad ? uint64_t{1} : 0};
    row.Reduce(values,
               [](int i, uint64_t a, uint64_t b) { return i == 1 ? min(a, b) : max(a, b); });
    best = values[0];
    lowest = ValueOf(static_cast<uint32_t>(values[1]));
    return values[2] != 0;
  }
};

// Sixteen bytes into shared memory, behind this thread's back.
__device__ void CopyAhead(float4* to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(hopper::SharedAddress(to)),
               "l"(from)
               : "memory");
}
__device__ void AwaitCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Brings this thread's logits into the slice; what lies beyond the vocabulary is not brought.
__device__ void Fetch(const Row& row, const Params& p, const float* logits) {
  for (int t = row.first_tile(); t < row.last_tile(); ++t) {
    const int id = row.id_of(t);
    if (p.vectors && id + 3 < p.vocab) {
      CopyAhead(row.tile(t), logits + id);
      continue;
    }
    float x[4];
    for (int i = 0; i < 4; ++i) x[i] = id + i < p.vocab ? logits[id + i] : -INFINITY;
    *row.tile(t) = make_float4(x[0], x[1], x[2], x[3]);
  }
  AwaitCopies();
}

// The same; then ids without a bit in `mask` get -inf. Returns whether a logit is not finite;
// `extremes` are those of the raw logits.
__device__ bool Load(const Row& row,
                     const Params& p,
                     const float* logits,
                     const uint32_t* mask,
                     Extremes& extremes) {
  Fetch(row, p, logits);
  bool bad = false;
  for (int t = row.first_tile(); t < row.last_tile(); ++t) {
    const int id = row.id_of(t);
    if (id >= p.vocab) break;
    const float4 four = *row.tile(t);
    float x[4] = {four.x, four.y, four.z, four.w};
    const uint32_t allowed = mask == nullptr ? 15 : mask[id / 32] >> (id % 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (id + i < p.vocab) {
        bad = bad || (__float_as_uint(x[i]) & 0x7F800000u) == 0x7F800000u;
        extremes.Add(x[i], id + i);
      }
      if ((allowed >> i & 1) == 0) x[i] = -INFINITY;
    }
    if (mask != nullptr) *row.tile(t) = make_float4(x[0], x[1], x[2], x[3]);
  }
  return bad;
}

// Penalties as the contract orders them, each product and difference rounded by itself.
__device__ float Penalised(float x, uint32_t count, const SampleWant& want) {
  x = x > 0 ? __fdiv_rn(x, want.repetition) : __fmul_rn(x, want.repetition);
  const uint32_t in_output = count & 0x7FFFFFFF;
  if (in_output == 0) return x;
  x = __fsub_rn(x, __fmul_rn(want.frequency, static_cast<float>(in_output)));
  return __fsub_rn(x, want.presence);
}

// `counts` [slice]: how often each id is in the output, and the highest bit if it is in the prompt.
__device__ void Penalise(const Row& row,
                         const Params& p,
                         const SampleWant& want,
                         uint32_t* counts) {
  for (int i = threadIdx.x; i < p.slice; i += kThreads) counts[i] = 0;
  __syncthreads();
  const auto at = [&](uint32_t id) { return static_cast<uint32_t>(id - row.begin()); };
  for (int i = threadIdx.x; i < want.output_count; i += kThreads) {
    const uint32_t place = at(p.words[want.output + i]);
    if (place < static_cast<uint32_t>(p.slice)) atomicAdd(&counts[place], 1u);
  }
  for (int i = threadIdx.x; i < want.prompt_count; i += kThreads) {
    const uint32_t place = at(p.words[want.prompt + i]);
    if (place < static_cast<uint32_t>(p.slice)) atomicOr(&counts[place], 0x80000000u);
  }
  __syncthreads();
  for (int t = row.first_tile(); t < row.last_tile(); ++t) {
    const uint4 four = *reinterpret_cast<const uint4*>(counts + row.id_of(t) - row.begin());
    if ((four.x | four.y | four.z | four.w) == 0) continue;
    float4 x = *row.tile(t);
    if (four.x != 0) x.x = Penalised(x.x, four.x, want);
    if (four.y != 0) x.y = Penalised(x.y, four.y, want);
    if (four.z != 0) x.z = Penalised(x.z, four.z, want);
    if (four.w != 0) x.w = Penalised(x.w, four.w, want);
    *row.tile(t) = x;
  }
}

// Everything but the mask.
__device__ void Modify(const Row& row, const Params& p, const SampleWant& want, uint32_t* counts) {
  __syncthreads();
  for (int i = threadIdx.x; i < want.banned_count; i += kThreads) {
    float* x = row.Find(static_cast<int32_t>(p.words[want.banned + i]), p.slice);
    if (x != nullptr) *x = -INFINITY;
  }
  __syncthreads();
  const uint32_t* const ids = p.words + want.bias;
  const auto* const values = reinterpret_cast<const float*>(ids + want.bias_count);
  for (int i = threadIdx.x; i < want.bias_count; i += kThreads) {
    // The first of equal ids adds them all, in their order.
    float* x = row.Find(static_cast<int32_t>(ids[i]), p.slice);
    if (x == nullptr || (i > 0 && ids[i - 1] == ids[i])) continue;
    for (int k = i; k < want.bias_count && ids[k] == ids[i]; ++k) *x = __fadd_rn(*x, values[k]);
  }
  __syncthreads();
  if (want.prompt_count + want.output_count > 0) Penalise(row, p, want, counts);
}

// The lowest logit whose weight, in f64, is at least min_p. Where the f32 weight is close the f64
// one decides.
__device__ float LowestOfWeight(Row& row, const Weigher& weigher, const SampleWant& want) {
  uint64_t lowest[1] = {~uint64_t{0}};
  const auto reaches = [&](float x) {
    const float weight = weigher.Weight(x);
    if (fabsf(weight - want.min_p) > 1e-5f * want.min_p) return weight >= want.min_p;
    const double exact = (static_cast<double>(x) - static_cast<double>(weigher.highest)) /
                         static_cast<double>(want.temperature);
    return exp(exact) >= static_cast<double>(want.min_p);
  };
  row.ForEach([&](float x, int32_t) {
    if (x > -INFINITY && reaches(x)) lowest[0] = min(lowest[0], uint64_t{KeyOf(x)});
  });
  row.Reduce(lowest, [](int, uint64_t a, uint64_t b) { return min(a, b); });
  return lowest[0] == ~uint64_t{0} ? INFINITY : ValueOf(static_cast<uint32_t>(lowest[0]));
}

// The fewest heaviest whose weights sum to top_p of all that are kept.
__device__ Cut CutByWeight(
    Row& row, const Weigher& weigher, const Cut& cut, float lowest, const SampleWant& want) {
  // Most often they lie near the highest, and then the many light ones need no look.
  const float near = weigher.highest - 8 * want.temperature;
  uint64_t sums[2] = {0, 0};
  row.ForEach([&](float x, int32_t id) {
    const uint64_t units = Kept(cut, x, id) ? weigher.Units(x) : 0;
    sums[0] += units;
    sums[1] += x >= near ? units : 0;
  });
  row.Reduce(sums, [](int, uint64_t a, uint64_t b) { return a + b; });
  const double share = static_cast<double>(want.top_p) * static_cast<double>(sums[0]);
  uint64_t target = __double2ull_ru(share);
  target = min(max(target, uint64_t{1}), sums[0]);
  // What is 32 temperatures below weighs nothing.
  const float far = weigher.highest - 32 * want.temperature;
  const float low = fmaxf(lowest, sums[1] >= target ? near : far);
  return FindCut(row, cut, low, weigher.highest, target, Weighed{weigher});
}

__device__ int32_t Draw(Row& row, const Extremes& extremes, const SampleWant& want) {
  const float highest = LogitOf(extremes.best);
  const Weigher weigher(highest, want.temperature);
  Cut cut = {extremes.lowest, kAnyId};
  if (want.min_p > 0) cut.value = fmaxf(cut.value, LowestOfWeight(row, weigher, want));
  if (want.top_k > 0) {
    cut = FindCut(row, cut, cut.value, highest, static_cast<uint64_t>(want.top_k), One());
  }
  if (want.top_p < 1) cut = CutByWeight(row, weigher, cut, cut.value, want);
  return row.FindInOrder(
      [&](float x, int32_t id) { return Kept(cut, x, id) ? weigher.Units(x) : 0; },
      [&](uint64_t total) { return __umul64hi(want.uniform, total) + 1; });
}

// Of the raw logits, which the slice holds. The best ids go to `tops`.
__device__ void Logprobs(Row& row,
                         const Extremes& extremes,
                         float chosen,
                         int tops_wanted,
                         SampleTop* tops,
                         SampleAnswer& answer) {
  const float highest = LogitOf(extremes.best);
  const Weigher weigher(highest, 1);
  uint64_t sums[2] = {0, 0};
  row.ForEach([&](float x, int32_t) {
    sums[0] += weigher.Units(x);
    sums[1] += x > chosen ? 1 : 0;
  });
  row.Reduce(sums, [](int, uint64_t a, uint64_t b) { return a + b; });
  const double log_sum =
      static_cast<double>(highest) + log(static_cast<double>(sums[0]) / static_cast<double>(kUnit));
  answer.rank = static_cast<int32_t>(sums[1]) + 1;
  answer.logprob = static_cast<float>(static_cast<double>(chosen) - log_sum);
  answer.tops = tops_wanted;
  if (tops_wanted == 0) return;

  const Cut all = {extremes.lowest, kAnyId};
  const Cut cut =
      FindCut(row, all, extremes.lowest, highest, static_cast<uint64_t>(tops_wanted), One());
  // The candidates of the last search have been read: FindCut ends with a barrier of the cluster.
  if (threadIdx.x == 0) row.s.list_count = 0;
  row.Barrier();
  Selection<One> best{row, cut, One()};
  best.Gather(Bins{0, ~0u, 0, 0, 0}, 0);
  if (row.rank() != 0) return;
  const auto count = row.s.list_count;
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint64_t key = row.s.list.keys[i];
    int better = 0;
    for (uint32_t k = 0; k < count; ++k) better += row.s.list.keys[k] > key ? 1 : 0;
    tops[better] = {IdOf(key), static_cast<float>(static_cast<double>(LogitOf(key)) - log_sum)};
  }
}

__device__ void Answer(const Params& p, int64_t at, const SampleAnswer& answer) {
  p.answers[at] = answer;
  if (p.tokens != nullptr) p.tokens[at] = answer.token;
}

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 2)
    SampleKernel(Params p) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared shared;
  float* const slice = reinterpret_cast<float*>(dynamic);
  auto* const counts = reinterpret_cast<uint32_t*>(slice + p.slice);
  Row row(shared, slice, p.slice);
  const int64_t at = blockIdx.x / kCluster;
  const bool first = row.rank() == 0 && threadIdx.x == 0;
  hopper::LetDependentsLaunch();
  row.Arrive();
  hopper::WaitForPredecessors();

  const SampleWant& want = p.wants[at];
  SampleAnswer answer = {.token = -1, .rank = 0, .logprob = 0, .tops = -1};
  if (want.logits_row < 0) {
    if (first) Answer(p, at, answer);
    row.AwaitOthers();
    return;
  }
  const float* const logits = p.logits + want.logits_row * p.stride;
  const uint32_t* const mask = want.given < 0 && want.mask >= 0 ? p.words + want.mask : nullptr;
  Extremes raw;
  const bool mine_bad = Load(row, p, logits, mask, raw);
  row.AwaitOthers();
  const bool bad = raw.Reduce(row, mine_bad);
  bool modified = false;
  if (bad) {
    // No token.
  } else if (want.given >= 0) {
    answer.token = want.given;
  } else {
    modified = mask != nullptr || want.banned_count + want.bias_count > 0 ||
               want.prompt_count + want.output_count > 0;
    Extremes extremes = raw;
    if (modified) {
      Modify(row, p, want, counts);
      __syncthreads();
      extremes = Extremes();
      row.ForEach([&](float x, int32_t id) { extremes.Add(x, id); });
      extremes.Reduce(row, false);
    }
    if (LogitOf(extremes.best) > -INFINITY) {
      answer.token = want.temperature < 1e-5f ? IdOf(extremes.best) : Draw(row, extremes, want);
    }
  }
  if (answer.token >= 0 && want.top_logprobs >= 0) {
    if (modified) Fetch(row, p, logits);
    const int tops = min(want.top_logprobs, min(p.vocab, p.top_max));
    Logprobs(row, raw, logits[answer.token], tops, p.tops + at * p.top_max, answer);
  }
  if (first) Answer(p, at, answer);
  row.Barrier();  // others may still write to this block
}

}  // namespace
}  // namespace sampling

void LaunchSample(const OpContext& ctx, const SampleLaunch& launch) {
  using namespace sampling;  // NOLINT
  const TensorView& logits = launch.logits;
  const SampleShape& shape = launch.shape;
  BT_CHECK(logits.rank == 2 && logits.dtype == DType::kF32);
  BT_CHECK(shape.top_max >= 0 && shape.top_max <= kSampleTopMax);
  if (shape.rows == 0) return;
  const int64_t vocab = logits.dim(1);
  const int64_t share = (vocab + kCluster - 1) / kCluster;
  const int64_t slice = (share + kTile - 1) / kTile * kTile;
  const auto shared_bytes = static_cast<size_t>(slice) * 4 * (shape.penalties ? 2 : 1);
  // 227 KiB a block, less what is not the slice.
  constexpr size_t kDynamicMax = 227 * 1024 - sizeof(Shared);
  BT_CHECK(shared_bytes <= kDynamicMax);
  CheckCuda(cudaFuncSetAttribute(SampleKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kDynamicMax)),
            "shared memory of sampling");

  const auto* wants = static_cast<const SampleWant*>(launch.wants);
  auto* answers = static_cast<SampleAnswer*>(launch.answers);
  const Params p = {.logits = logits.as<float>(),
                    .stride = logits.stride[0],
                    .vocab = static_cast<int>(vocab),
                    .slice = static_cast<int>(slice),
                    .wants = wants,
                    .words = reinterpret_cast<const uint32_t*>(wants + shape.rows),
                    .answers = answers,
                    .tops = reinterpret_cast<SampleTop*>(answers + shape.rows),
                    .tokens = launch.tokens,
                    .top_max = shape.top_max,
                    .vectors = InVectors(logits)};
  const auto blocks = static_cast<unsigned>(shape.rows * kCluster);
  CheckCuda(LaunchPlaced("sampling", SampleKernel, dim3(blocks), dim3(kThreads), shared_bytes,
                         StreamOf(ctx), 0, p),
            "sampling");
}

}  // namespace baltoro::cuda
