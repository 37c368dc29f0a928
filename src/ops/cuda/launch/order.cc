#include "ops/cuda/launch/order.h"

#include <cstdio>
#include <utility>

#include "base/check.h"

namespace baltoro::cuda {

const LaunchNote* LaunchOrder::WriterOf(const Bytes& bytes) const {
  for (const LaunchNote& running : running_) {
    if (!running.writes_known) return &running;
    for (const Bytes& written : running.writes) {
      if (written.Meets(bytes)) return &running;
    }
  }
  return nullptr;
}

void LaunchOrder::Add(LaunchNote note) {
  for (const Bytes& read : note.reads_early) {
    const LaunchNote* const writer = WriterOf(read);
    if (writer == nullptr) continue;
    std::fprintf(stderr, "%s reads before its wait what %s may still be writing\n", note.kernel,
                 writer->kernel);
    BT_CHECK(writer == nullptr);
  }
  // Two launches of a stream that let the next start at once may both run beside it, and so on: as
  // many as the chain is long until one waits.
  if (note.next != NextStarts::kAtOnce) running_.clear();
  if (note.next != NextStarts::kAfterEnd) running_.push_back(std::move(note));
}

}  // namespace baltoro::cuda
