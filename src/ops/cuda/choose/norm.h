#pragma once

// Which kernel computes a norm, a swiglu or a routing of rows, and how it is launched.

#include <optional>
#include <string>

#include "ops/cuda/choose/card.h"
#include "ops/cuda/choose/facts.h"

namespace baltoro::cuda {

// What a norm writes beside its rows, for those who read them next.
enum class NormCopy { kNone, kCodes, kMatrixOrder };

struct NormQuestion {
  RowsFacts x, out;
  std::optional<RowsFacts> part = std::nullopt;  // added to x ahead of the norm, which x keeps
  int32_t weight_alignment = 256;
  // What there is room for, of such rows.
  bool codes_wanted = false, order_wanted = false;
  Card card = {};
};

// A row is one block's, a cluster's, or one of those that a block streams through.
enum class NormWay {
  kRowEights1,  // eight elements a thread
  kRowEights4,  // up to 32
  kRowCluster2,
  kRowCluster4,
  kRowCluster8,
  kRowsStreaming,
};

struct NormPlan {
  NormWay kernel = NormWay::kRowEights1;
  NormCopy copy = NormCopy::kNone;
  bool vectors = false;  // 16 bytes at a time
  int64_t blocks = 0;
  int32_t threads = 0;
  int32_t stages = 0, shared_bytes = 0;  // of kRowsStreaming
  const char* why = "";

  bool operator==(const NormPlan&) const = default;
};

NormPlan ChooseNorm(const NormQuestion& question);

// The copy alone, for who joins a norm to something else: `codes`, `order` say whether its kernel
// can write such a copy of rows of this width.
NormCopy ChooseNormCopy(const NormQuestion& question, bool codes, bool order);

// silu(gate) * up: rows, or the codes that a product of them reads.
struct SwigluQuestion {
  RowsFacts x;                                       // [rows, 2 width]
  RowsFacts out = {};                                // not looked at where codes are asked for
  std::optional<MatrixFacts> reader = std::nullopt;  // codes for this matrix
  Card card = {};
};

enum class SwigluWay { kNone, kRows, kCodes };

struct SwigluPlan {
  SwigluWay kernel = SwigluWay::kNone;  // kNone: no codes can be made of these rows
  bool vectors = false;                 // 16 bytes at a time
  int64_t blocks = 0;
  int32_t threads = 0;
  const char* why = "";

  bool operator==(const SwigluPlan&) const = default;
};

SwigluPlan ChooseSwiglu(const SwigluQuestion& question);

struct RouteQuestion {
  int64_t rows = 0;
  RouterParams params;
};

enum class RouteWay { kWarpEach, kBlockEach };  // of a token

struct RoutePlan {
  RouteWay kernel = RouteWay::kBlockEach;
  int64_t blocks = 0;
  int32_t threads = 0;
  const char* why = "";

  bool operator==(const RoutePlan&) const = default;
};

RoutePlan ChooseRoute(const RouteQuestion& question);

// A plan in one line, without what follows from the rows.
std::string Text(const NormPlan& plan);
std::string Text(const SwigluPlan& plan);
std::string Text(const RoutePlan& plan);

}  // namespace baltoro::cuda
