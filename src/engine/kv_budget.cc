#include "engine/kv_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cache/block_id.h"
#include "ops/ops.h"

namespace baltoro {

namespace {

constexpr double kGiB = 1 << 30;
constexpr int64_t kDefaultBytesMax = int64_t{4} << 30;
// The cache and the operations, which do not know each other, mean the same.
static_assert(kBlockTokens == KvLayerView::kBlockTokens);

}  // namespace

Result<KvBudget> PlanKvCache(const KvQuestion& question) {
  KvBudget budget;
  budget.bytes = question.bytes_asked > 0
                     ? question.bytes_asked
                     : std::min(kDefaultBytesMax, question.bytes_available / 4);
  const int64_t block_bytes = question.bytes_per_token * kBlockTokens;
  budget.num_blocks = std::min<int64_t>(budget.bytes / block_bytes * question.ways,
                                        std::numeric_limits<int32_t>::max() / kBlockTokens);
  const int64_t tokens = budget.num_blocks * kBlockTokens;
  if (question.max_model_len > question.model_len && !question.allow_longer) {
    return InvalidArgument(
        fmt::format("User-specified max_model_len ({}) is greater than the derived max_model_len "
                    "(max_position_embeddings={}). Give --max-model-len {}, or set "
                    "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 if you know that the model can do it.",
                    question.max_model_len, question.model_len, question.model_len));
  }
  budget.max_model_len = question.max_model_len > 0 ? question.max_model_len : question.model_len;
  if (question.max_model_len < 0) budget.max_model_len = std::min(question.model_len, tokens);
  if (budget.max_model_len > tokens || tokens == 0) {
    const int64_t blocks =
        (int64_t{BlocksFor(budget.max_model_len)} + question.ways - 1) / question.ways;
    const int64_t needed = blocks * block_bytes;
    return InvalidArgument(fmt::format(
        "To serve at least one request with the models's max seq len ({}), ({:.2f} GiB KV cache is "
        "needed, which is larger than the available KV cache memory ({:.2f} GiB). Based on the "
        "available memory, the estimated maximum model length is {}. Try increasing "
        "VLLM_CPU_KVCACHE_SPACE or --kv-cache-memory-bytes, or decreasing --max-model-len.",
        budget.max_model_len, static_cast<double>(needed) / kGiB,
        static_cast<double>(budget.bytes) / kGiB, tokens));
  }
  budget.bytes = budget.num_blocks / question.ways * block_bytes;
  return budget;
}

}  // namespace baltoro
