#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"
#include "tensor/float8.h"

namespace baltoro::reference {
namespace {

using Values = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the cache holds of the token in a slot, [R + P]; exact in f64.
Values Cached(const KvLayerView& cache, int64_t slot) {
  const int64_t width = cache.latent + cache.rope;
  const auto* from = static_cast<const uint8_t*>(cache.data) + slot * cache.token_bytes();
  if (cache.form == KvForm::kF32) return Widen(from, DType::kF32, 0, width);
  if (cache.form == KvForm::kBf16) return Widen(from, DType::kBf16, 0, width);
  Values values;
  for (int64_t d = 0; d < cache.latent; ++d) {
    float scale = cache.scale;
    if (cache.form == KvForm::kFp8Groups) {
      std::memcpy(&scale, from + cache.latent + d / kKvGroup * 4, sizeof(scale));
    }
    values.push_back(double{FromE4M3(from[d])} * double{scale});
  }
  for (int64_t d = 0; d < cache.rope; ++d) {
    if (cache.form == KvForm::kFp8) {
      values.push_back(double{FromE4M3(from[cache.latent + d])} * double{cache.scale});
      continue;
    }
    Bf16 value;
    std::memcpy(&value, from + cache.latent + KvGroups(cache.latent) * 4 + d * 2, sizeof(value));
    values.push_back(double{ToFloat(value)});
  }
  return values;
}

// The keys of one sequence: their positions, and what the cache holds of them, [keys][R + P].
struct Keys {
  Keys(const MlaAttentionArgs& args, const AttentionSequence& sequence) {
    constexpr int32_t kBlock = KvLayerView::kBlockTokens;
    for (int32_t key = 0; key < sequence.key_count; ++key) {
      const int64_t slot = int64_t{sequence.blocks[key / kBlock]} * kBlock + key % kBlock;
      cached.push_back(Cached(args.cache, slot));
      positions.push_back(sequence.block_positions.empty()
                              ? key
                              : sequence.block_positions[key / kBlock] + key % kBlock);
    }
  }
  int64_t count() const { return static_cast<int64_t>(positions.size()); }

  std::vector<Values> cached;
  std::vector<int32_t> positions;
};

// One head's share of the weights, and what kv_b makes of each latent: N elements of the key, then
// V of the value.
struct Head {
  Head(const MlaAttentionArgs& args, const Keys& keys, int64_t head) {
    const int64_t rows = args.nope + args.value;
    const PackedMatrix& uk = args.uk_t;
    kv_b = Widen(args.kv_b.data, PlainType(args.kv_b.form), head * rows * args.latent,
                 rows * args.latent);
    uk_t = Widen(uk.at(head).data, PlainType(uk.form), 0, args.latent * args.nope);
    for (const Values& latent : keys.cached) {
      Values key;
      for (int64_t row = 0; row < rows; ++row) {
        key.push_back(Dot(&kv_b[row * args.latent], latent.data(), args.latent));
      }
      expanded.push_back(std::move(key));
    }
  }

  Values kv_b;                   // [N + V][R]
  Values uk_t;                   // [R][N]
  std::vector<Values> expanded;  // [keys][N + V]
};

struct Attended {
  Values value;  // [V]
  double lse = -kInfinity;
};

// sum_key softmax(scores)_key * rows[key][begin : begin + width]
Values Weighted(const Values& scores,
                double lse,
                const std::vector<Values>& rows,
                int64_t begin,
                int64_t width) {
  Values sum(static_cast<size_t>(width), 0.0);
  for (size_t key = 0; key < scores.size(); ++key) {
    if (scores[key] == -kInfinity) continue;  // not seen
    const double share = std::exp(scores[key] - lse);
    for (int64_t i = 0; i < width; ++i) sum[i] += share * rows[key][begin + i];
  }
  return sum;
}

double LogSumExp(const Values& scores) {
  double highest = -kInfinity;
  for (const double score : scores) highest = std::max(highest, score);
  if (highest == -kInfinity) return highest;
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - highest);
  return highest + std::log(sum);
}

// `q` is [N + P] of one token and head.
Attended Attend(const MlaAttentionArgs& args,
                const Keys& keys,
                const Head& head,
                const Values& q,
                int32_t position,
                bool absorbed) {
  Values absorbed_query;  // [R]
  for (int64_t r = 0; absorbed && r < args.latent; ++r) {
    absorbed_query.push_back(Dot(q.data(), &head.uk_t[r * args.nope], args.nope));
  }
  Values scores;
  for (int64_t key = 0; key < keys.count(); ++key) {
    const Values& cached = keys.cached[key];
    const double rotated = Dot(&q[args.nope], &cached[args.latent], args.rope);
    const double content = absorbed ? Dot(absorbed_query.data(), cached.data(), args.latent)
                                    : Dot(q.data(), head.expanded[key].data(), args.nope);
    const bool seen = keys.positions[key] <= position;
    scores.push_back(seen ? double{args.scale} * (content + rotated) : -kInfinity);
  }

  Attended attended{.value = {}, .lse = LogSumExp(scores)};
  if (!absorbed) {
    attended.value = Weighted(scores, attended.lse, head.expanded, args.nope, args.value);
    return attended;
  }
  const Values latent = Weighted(scores, attended.lse, keys.cached, 0, args.latent);
  for (int64_t v = 0; v < args.value; ++v) {
    attended.value.push_back(
        Dot(&head.kv_b[(args.nope + v) * args.latent], latent.data(), args.latent));
  }
  return attended;
}

}  // namespace

void MlaAttention(const OpContext&, const MlaAttentionArgs& args) {
  BT_CHECK(args.q.rank == 3 && args.q.dim(1) == args.heads);
  BT_CHECK(args.q.dim(2) == args.nope + args.rope);
  BT_CHECK(args.out.rank == 2 && args.out.dim(0) == args.q.dim(0));
  BT_CHECK(args.out.dim(1) == int64_t{args.heads} * args.value);
  BT_CHECK(args.cache.latent == args.latent && args.cache.rope == args.rope);
  BT_CHECK(args.kv_b.n == int64_t{args.heads} * (args.nope + args.value));
  BT_CHECK(args.kv_b.k == args.latent);
  BT_CHECK(args.uk_t.n == args.latent && args.uk_t.k == args.nope);
  for (const AttentionSequence& sequence : args.sequences) {
    const Keys keys(args, sequence);
    for (int64_t h = 0; h < args.heads; ++h) {
      const Head head(args, keys, h);
      for (int32_t i = 0; i < sequence.query_count; ++i) {
        const int64_t t = sequence.query_begin + i;
        const int32_t position = sequence.first_position + i;
        const Values q = Widen(args.q.data, args.q.dtype,
                               t * args.q.stride[0] + h * args.q.stride[1], args.nope + args.rope);
        const Attended attended =
            Attend(args, keys, head, q, position, position >= sequence.absorbed_from);
        for (int64_t v = 0; v < args.value; ++v) {
          Store(args.out, t, h * args.value + v, attended.value[v]);
        }
        if (args.lse) args.lse.row<float>(t)[h] = static_cast<float>(attended.lse);
      }
    }
  }
}

}  // namespace baltoro::reference
