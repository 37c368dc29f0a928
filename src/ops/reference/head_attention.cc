#include <cmath>
#include <limits>
#include <vector>

#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {

void HeadAttention(const OpContext&, const HeadAttentionArgs& args) {
  constexpr int32_t kBlock = KvLayerView::kBlockTokens;
  const int64_t heads = args.q.dim(1), width = args.q.dim(2);
  BT_CHECK(args.cache.latent == args.key_heads * width && args.cache.rope == args.cache.latent);
  BT_CHECK(args.out.dim(0) == args.q.dim(0) && args.out.dim(1) == heads * width);
  BT_CHECK(heads % args.key_heads == 0);
  const DType stored = args.cache.form == KvForm::kF32 ? DType::kF32 : DType::kBf16;
  BT_CHECK(args.cache.form == PlainKvForm(stored));
  for (const AttentionSequence& sequence : args.sequences) {
    for (int32_t i = 0; i < sequence.query_count; ++i) {
      const int64_t t = sequence.query_begin + i;
      for (int64_t h = 0; h < heads; ++h) {
        const std::vector<double> q =
            Widen(args.q.data, args.q.dtype, t * args.q.stride[0] + h * args.q.stride[1], width);
        const int64_t at = h / (heads / args.key_heads) * width;  // in a row of keys, or of values
        std::vector<double> scores;
        std::vector<std::vector<double>> values;
        double highest = -std::numeric_limits<double>::infinity();
        for (int32_t key = 0; key < sequence.key_count; ++key) {
          const int32_t begin = sequence.block_positions.empty()
                                    ? key / kBlock * kBlock
                                    : sequence.block_positions[key / kBlock];
          if (begin + key % kBlock > sequence.first_position + i) continue;
          const int64_t slot = int64_t{sequence.blocks[key / kBlock]} * kBlock + key % kBlock;
          const int64_t row = slot * 2 * args.cache.latent;
          const std::vector<double> k = Widen(args.cache.data, stored, row + at, width);
          scores.push_back(double{args.scale} * Dot(q.data(), k.data(), width));
          values.push_back(Widen(args.cache.data, stored, row + args.cache.latent + at, width));
          highest = std::max(highest, scores.back());
        }
        double sum = 0;
        std::vector<double> out(static_cast<size_t>(width), 0.0);
        for (size_t key = 0; key < scores.size(); ++key) {
          const double share = std::exp(scores[key] - highest);
          sum += share;
          for (int64_t d = 0; d < width; ++d) out[d] += share * values[key][d];
        }
        for (int64_t d = 0; d < width; ++d) {
          Store(args.out, t, h * width + d, sum == 0 ? 0 : out[d] / sum);
        }
      }
    }
  }
}

}  // namespace baltoro::reference
