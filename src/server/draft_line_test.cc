#include "server/draft_line.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(DraftLineTest, ItIsUpstreamsOfWhatCameSinceTheLastOne) {
  DraftStats before;
  before.Count(3, 3);
  DraftStats now = before;
  now.Count(3, 2);
  now.Count(3, 0);
  now.Count(2, 2);
  now.Count(2, 1);

  EXPECT_EQ(DraftLine(before, now, 3, 1, 10),
            "SpecDecoding metrics: Mean acceptance length: 2.25, Accepted throughput: 0.50 "
            "tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: 5 tokens, Drafted: 10 tokens, "
            "Per-position acceptance rate: 0.750, 0.500, 0.000, Avg Draft acceptance rate: 50.0%, "
            "Drafts asked for: 1");
}

TEST(DraftLineTest, WithoutDraftsThereIsNone) {
  DraftStats stats;
  EXPECT_EQ(DraftLine(stats, stats, 4, 4, 10), "");
  stats.Count(4, 4);
  EXPECT_EQ(DraftLine(stats, stats, 4, 4, 10), "");
}

}  // namespace
}  // namespace baltoro
