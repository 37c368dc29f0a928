#include "ops/compose/two_level_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "ops/group_rows.h"
#include "ops/slab_exchange.h"

namespace baltoro {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kTensorsMost = 8;  // of one Gather
// Of each host, whatever the rows of a step.
constexpr int64_t kRoomLeast = kCountBytesAtOnce;

int64_t Padded(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::vector<int64_t> RowsOfPlace(std::span<const int64_t> rows, int64_t place, int64_t of_host) {
  std::vector<int64_t> of_place;
  for (int64_t rank = place; rank < std::ssize(rows); rank += of_host) {
    of_place.push_back(rows[static_cast<size_t>(rank)]);
  }
  return of_place;
}

}  // namespace

int64_t TwoLevelExchange::RoomBytes(int64_t hosts,
                                    int64_t rows_max,
                                    int64_t row_bytes,
                                    int64_t sum_row_bytes) {
  const int64_t of_host = std::max(kRoomLeast, rows_max * std::max(row_bytes, sum_row_bytes));
  return Padded(hosts * of_host) + kTensorsMost * kAlignment;
}

TwoLevelExchange::TwoLevelExchange(Levels levels) : levels_(std::move(levels)) {
  BT_CHECK(levels_.across != nullptr && levels_.within != nullptr && levels_.clear);
  BT_CHECK(levels_.replica >= 0 && levels_.replica < levels_.hosts * levels_.of_host);
}

std::vector<TwoLevelExchange::HostRows> TwoLevelExchange::RowsOfHosts(
    std::span<const int64_t> rows) const {
  BT_CHECK(std::ssize(rows) == levels_.hosts * levels_.of_host);
  const auto of_host = static_cast<size_t>(levels_.of_host);
  const auto place = static_cast<size_t>(levels_.replica) % of_host;
  std::vector<HostRows> hosts;
  HostRows host;
  for (size_t first = 0; first < rows.size(); first += of_host) {
    host.rows = rows.subspan(first, of_host);
    host.count = std::accumulate(host.rows.begin(), host.rows.end(), int64_t{0});
    host.of_place = host.rows[place];
    hosts.push_back(host);
    host.first += host.count;
    host.crossed += host.of_place;
  }
  return hosts;
}

// Who receives rows has them in the order of the replicas: one exchange within the host for each
// host, since its ranks' rows lie beside one another.
void TwoLevelExchange::Gather(const OpContext& ctx,
                              std::span<const Gathered> tensors,
                              std::span<const int64_t> rows) {
  const std::vector<HostRows> hosts = RowsOfHosts(rows);
  CheckGathered(tensors, rows, static_cast<size_t>(levels_.replica));
  const int64_t crossed = hosts.back().crossed + hosts.back().of_place;
  std::vector<Gathered> between;
  int64_t at = 0;
  for (const Gathered& one : tensors) {
    const TensorView there(levels_.room.data() + at, one.all.dtype, {crossed, one.all.dim(1)});
    between.push_back({.all = there, .own = one.own});
    at += Padded(crossed * RowBytes(there));
  }
  BT_CHECK(at <= std::ssize(levels_.room));
  levels_.across->Gather(ctx, between,
                         RowsOfPlace(rows, levels_.replica % levels_.of_host, levels_.of_host));
  std::vector<Gathered> dealt(tensors.size());
  for (const HostRows& host : hosts) {
    if (host.count == 0) continue;
    for (size_t i = 0; i < tensors.size(); ++i) {
      dealt[i] = {.all = tensors[i].all.rows(host.first, host.count),
                  .own = between[i].all.rows(host.crossed, host.of_place)};
    }
    levels_.within->Gather(ctx, dealt, host.rows);
  }
}

void TwoLevelExchange::AddBack(const OpContext& ctx,
                               TensorView own,
                               TensorView all,
                               std::span<const int64_t> rows) {
  const std::vector<HostRows> hosts = RowsOfHosts(rows);
  CheckAddedBack(own, all, rows, static_cast<size_t>(levels_.replica));
  const int64_t crossing = hosts.back().crossed + hosts.back().of_place;
  const TensorView sums(levels_.room.data(), levels_.sum_type, {crossing, all.dim(1)});
  BT_CHECK(crossing * RowBytes(sums) <= std::ssize(levels_.room));
  if (crossing > 0) levels_.clear(ctx, sums);
  for (const HostRows& host : hosts) {
    if (host.count == 0) continue;
    levels_.within->AddBack(ctx, sums.rows(host.crossed, host.of_place),
                            all.rows(host.first, host.count), host.rows);
  }
  levels_.across->AddBack(ctx, own, sums,
                          RowsOfPlace(rows, levels_.replica % levels_.of_host, levels_.of_host));
}

}  // namespace baltoro
