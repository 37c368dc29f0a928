#include "ops/cpu/cpu_ops.h"
#include "ops/thread_pool.h"

namespace baltoro::cpu {

int ThreadCount(const OpContext& ctx) {
  return ctx.pool == nullptr ? 1 : ctx.pool->threads();
}

void ParallelFor(const OpContext& ctx,
                 int64_t items,
                 const std::function<void(int64_t item, int thread)>& body) {
  if (ctx.pool == nullptr || items == 1) {
    for (int64_t item = 0; item < items; ++item) body(item, 0);
    return;
  }
  ctx.pool->ParallelFor(items, body);
}

}  // namespace baltoro::cpu
