#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What kv_b makes of the cached latents of one sequence, for one head: [keys][N + V].
std::vector<double> ExpandKeys(const MlaAttentionArgs& args,
                               const AttentionSequence& sequence,
                               int64_t head) {
  constexpr int32_t kBlock = KvLayerView::kBlockTokens;
  const int64_t rows = args.nope + args.value;
  const int64_t width = args.latent;
  std::vector<double> weights;
  for (int64_t i = head * rows * width; i < (head + 1) * rows * width; ++i) {
    weights.push_back(Load(args.kv_b.data, args.kv_b.dtype, i));
  }
  std::vector<double> expanded;
  std::vector<double> latent(static_cast<size_t>(width));
  for (int32_t key = 0; key < sequence.key_count; ++key) {
    const int64_t slot = int64_t{sequence.blocks[key / kBlock]} * kBlock + key % kBlock;
    for (int64_t r = 0; r < width; ++r) {
      latent[r] = Load(args.cache.data, args.cache.dtype, slot * args.cache.width + r);
    }
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int64_t r = 0; r < width; ++r) sum += weights[row * width + r] * latent[r];
      expanded.push_back(sum);
    }
  }
  return expanded;
}

// One query token of one head: its scores over the visible keys, then the weighted sum of values.
// `expanded` is empty when no token of the sequence uses the expanded form.
class Query {
 public:
  Query(const MlaAttentionArgs& args,
        const AttentionSequence& sequence,
        int64_t t,
        int64_t head,
        const std::vector<double>& expanded)
      : args_(args), sequence_(sequence), expanded_(expanded), t_(t), head_(head) {
    const int32_t position =
        sequence.first_position + static_cast<int32_t>(t) - sequence.query_begin;
    absorbed_ = position >= sequence.absorbed_from;
    for (int32_t key = 0; key < sequence.key_count; ++key) {
      if (PositionOf(key) <= position) keys_.push_back(key);
    }
  }

  void Run() {
    const std::vector<double> scores = absorbed_ ? AbsorbedScores() : ExpandedScores();
    double highest = -kInfinity;
    for (const double score : scores) highest = std::max(highest, score);
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - highest);

    std::vector<double> out(static_cast<size_t>(args_.value), 0.0);
    if (!keys_.empty()) {
      std::vector<double> shares;
      for (const double score : scores) shares.push_back(std::exp(score - highest) / sum);
      out = absorbed_ ? AbsorbedValue(shares) : ExpandedValue(shares);
    }
    for (int64_t v = 0; v < args_.value; ++v) {
      Store(args_.out, t_, head_ * args_.value + v, out[v]);
    }
    if (args_.lse) {
      args_.lse.row<float>(t_)[head_] =
          static_cast<float>(keys_.empty() ? -kInfinity : highest + std::log(sum));
    }
  }

 private:
  int32_t PositionOf(int32_t key) const {
    constexpr int32_t kBlock = KvLayerView::kBlockTokens;
    if (sequence_.block_positions.empty()) return key;
    return sequence_.block_positions[key / kBlock] + key % kBlock;
  }
  double Q(int64_t d) const {
    const TensorView& q = args_.q;
    return Load(q.data, q.dtype, t_ * q.stride[0] + head_ * q.stride[1] + d);
  }
  // Element d of the latent (d < R) or of the rotated key of a key token.
  double Cached(int32_t key, int64_t d) const {
    constexpr int32_t kBlock = KvLayerView::kBlockTokens;
    const int64_t slot = int64_t{sequence_.blocks[key / kBlock]} * kBlock + key % kBlock;
    return Load(args_.cache.data, args_.cache.dtype, slot * args_.cache.width + d);
  }
  // Row `row` of this head's share of kv_b: N key rows, then V value rows.
  double KvB(int64_t row, int64_t r) const {
    const int64_t first = head_ * (args_.nope + args_.value);
    return Load(args_.kv_b.data, args_.kv_b.dtype, (first + row) * args_.latent + r);
  }
  double RopeScore(int32_t key) const {
    double sum = 0;
    for (int64_t d = 0; d < args_.rope; ++d)
      sum += Q(args_.nope + d) * Cached(key, args_.latent + d);
    return sum;
  }
  // k_nope[n] of one key for n < N, v[n - N] from there.
  double Expanded(int32_t key, int64_t n) const {
    return expanded_[static_cast<size_t>(key * (args_.nope + args_.value) + n)];
  }

  std::vector<double> ExpandedScores() const {
    std::vector<double> scores;
    for (const int32_t key : keys_) {
      double sum = RopeScore(key);
      for (int64_t n = 0; n < args_.nope; ++n) sum += Q(n) * Expanded(key, n);
      scores.push_back(sum * double{args_.scale});
    }
    return scores;
  }
  std::vector<double> ExpandedValue(const std::vector<double>& shares) const {
    std::vector<double> out(static_cast<size_t>(args_.value), 0.0);
    for (size_t i = 0; i < keys_.size(); ++i) {
      for (int64_t v = 0; v < args_.value; ++v) {
        out[v] += shares[i] * Expanded(keys_[i], args_.nope + v);
      }
    }
    return out;
  }

  std::vector<double> AbsorbedScores() const {
    const PackedMatrix uk = args_.uk_t.at(head_);
    std::vector<double> query(static_cast<size_t>(args_.latent), 0.0);
    for (int64_t r = 0; r < args_.latent; ++r) {
      for (int64_t n = 0; n < args_.nope; ++n) {
        query[r] += Q(n) * double{Load(uk.data, uk.dtype, r * args_.nope + n)};
      }
    }
    std::vector<double> scores;
    for (const int32_t key : keys_) {
      double sum = RopeScore(key);
      for (int64_t r = 0; r < args_.latent; ++r) sum += query[r] * Cached(key, r);
      scores.push_back(sum * double{args_.scale});
    }
    return scores;
  }
  std::vector<double> AbsorbedValue(const std::vector<double>& shares) const {
    std::vector<double> latent(static_cast<size_t>(args_.latent), 0.0);
    for (size_t i = 0; i < keys_.size(); ++i) {
      for (int64_t r = 0; r < args_.latent; ++r) latent[r] += shares[i] * Cached(keys_[i], r);
    }
    std::vector<double> out(static_cast<size_t>(args_.value), 0.0);
    for (int64_t v = 0; v < args_.value; ++v) {
      for (int64_t r = 0; r < args_.latent; ++r) out[v] += KvB(args_.nope + v, r) * latent[r];
    }
    return out;
  }

  const MlaAttentionArgs& args_;
  const AttentionSequence& sequence_;
  const std::vector<double>& expanded_;
  int64_t t_;
  int64_t head_;
  bool absorbed_ = false;
  std::vector<int32_t> keys_;  // that this query sees
};

}  // namespace

void MlaAttention(const OpContext&, const MlaAttentionArgs& args) {
  BT_CHECK(args.q.rank == 3 && args.q.dim(1) == args.heads);
  BT_CHECK(args.q.dim(2) == args.nope + args.rope);
  BT_CHECK(args.out.rank == 2 && args.out.dim(0) == args.q.dim(0));
  BT_CHECK(args.out.dim(1) == int64_t{args.heads} * args.value);
  BT_CHECK(args.cache.width == args.latent + args.rope);
  BT_CHECK(args.kv_b.n == int64_t{args.heads} * (args.nope + args.value));
  BT_CHECK(args.kv_b.k == args.latent);
  BT_CHECK(args.uk_t.n == args.latent && args.uk_t.k == args.nope);
  for (const AttentionSequence& sequence : args.sequences) {
    const bool any_expanded =
        sequence.query_count > 0 && sequence.first_position < sequence.absorbed_from;
    for (int64_t head = 0; head < args.heads; ++head) {
      const std::vector<double> expanded =
          any_expanded ? ExpandKeys(args, sequence, head) : std::vector<double>();
      for (int32_t i = 0; i < sequence.query_count; ++i) {
        Query(args, sequence, sequence.query_begin + i, head, expanded).Run();
      }
    }
  }
}

}  // namespace baltoro::reference
