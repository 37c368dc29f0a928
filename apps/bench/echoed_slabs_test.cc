#include "bench/echoed_slabs.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "support/support.h"

namespace baltoro {
namespace {

using Slab = std::array<std::byte, 4>;

Slab Of(int value) {
  Slab slab;
  slab.fill(static_cast<std::byte>(value));
  return slab;
}

TEST(EchoedSlabsTest, WhatGoesOutComesInAndARestStaysAsItIs) {
  auto made = EchoedSlabs::Create(CpuOps(DType::kF32), {});
  ASSERT_TRUE(made.ok()) << made.status().message();
  EchoedSlabs& slabs = *made.value();
  Slab first = Of(1), second = Of(2), got = Of(9), also = Of(8);
  const SlabExchange::Out out[] = {{.rank = 3, .slab = first}, {.rank = 5, .slab = second}};
  const SlabExchange::In in[] = {{.rank = 5, .slab = got}, {.rank = 2, .slab = also}};
  slabs.Trade(out, std::span(in).first(1));
  EXPECT_EQ(got, Of(1));
  EXPECT_EQ(second, Of(2));
  EXPECT_EQ(slabs.TakeTraded(), 3);
  slabs.Trade(std::span(out).last(1), in);
  EXPECT_EQ(got, Of(2));
  EXPECT_EQ(also, Of(8));
  slabs.Trade({}, {});
  EXPECT_EQ(slabs.TakeTraded(), 3);
  EXPECT_EQ(slabs.TakeTraded(), 0);
  EXPECT_TRUE(slabs.status().ok());
}

}  // namespace
}  // namespace baltoro
