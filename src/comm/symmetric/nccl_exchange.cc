#include "comm/symmetric/nccl_exchange.h"

#include <algorithm>
#include <vector>

#include "comm/symmetric/group_parts.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/group_rows.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{64} << 20;  // or one row of each rank

}  // namespace

Result<std::unique_ptr<NcclExchange>> NcclExchange::Create(std::unique_ptr<NcclGroup> group,
                                                           int64_t columns,
                                                           int64_t rows_max) {
  // A row for each rank as it is sent and as it is received, in bf16.
  const int64_t row = 2 * group->ranks() * columns * 2;
  const auto bytes = static_cast<size_t>(std::max(row, std::min(kStagingBytes, row * rows_max)));
  BT_ASSIGN_OR_RETURN(DeviceBuffer staging, DeviceBuffer::Create(bytes, "what replicas exchange"));
  return std::unique_ptr<NcclExchange>(new NcclExchange(std::move(group), std::move(staging)));
}

void NcclExchange::Gather(const OpContext& ctx,
                          std::span<const Gathered> tensors,
                          std::span<const int64_t> rows) {
  BT_CHECK(std::ssize(rows) == group_->ranks());
  const auto self = static_cast<size_t>(group_->rank());
  CheckGathered(tensors, rows, self);
  const int64_t longest = *std::ranges::max_element(rows);
  if (longest == 0) return;
  const std::vector<RowRange> part = RowsOfPart(rows, 0, longest);
  const LaunchStream stream = StreamOf(ctx);
  // What comes behind a failure means nothing, but numbers of experts must be some.
  const bool failed = !group_->status().ok();
  for (const Gathered& one : tensors) {
    const auto bytes = static_cast<size_t>(one.all.num_elements() * SizeOf(one.all.dtype));
    if (failed) CheckCuda(cudaMemsetAsync(one.all.data, 0, bytes, stream), "clearing of rows");
    if (rows[self] == 0) continue;
    CheckCuda(
        cudaMemcpyAsync(static_cast<char*>(one.all.data) + part[self].begin * RowBytes(one.all),
                        one.own.data, static_cast<size_t>(rows[self] * RowBytes(one.all)),
                        cudaMemcpyDeviceToDevice, stream),
        "a copy of rows");
  }
  if (failed || group_->ranks() == 1) return;
  group_->Begin();
  for (const Gathered& one : tensors) {
    const int64_t width = RowBytes(one.all);
    for (const RowMessages& message : MessagesOfGather(part, self)) {
      const auto other = static_cast<int>(message.other);
      if (message.sent.count > 0) {
        group_->Send(one.own.data, static_cast<size_t>(message.sent.count * width), other, stream);
      }
      if (message.received.count > 0) {
        group_->Receive(static_cast<char*>(one.all.data) + message.received.begin * width,
                        static_cast<size_t>(message.received.count * width), other, stream);
      }
    }
  }
  group_->End();
  stream.order->AddPlain("exchange of replicas");
}

void NcclExchange::AddBack(const OpContext& ctx,
                           TensorView own,
                           TensorView all,
                           std::span<const int64_t> rows) {
  BT_CHECK(std::ssize(rows) == group_->ranks());
  const auto self = static_cast<size_t>(group_->rank()), ranks = rows.size();
  CheckAddedBack(own, all, rows, self);
  const LaunchStream stream = StreamOf(ctx);
  const int64_t columns = all.dim(1), longest = *std::ranges::max_element(rows);
  const int64_t row_bytes = 2 * static_cast<int64_t>(ranks) * columns * 2;
  const int64_t most = std::min(longest, static_cast<int64_t>(staging_.bytes()) / row_bytes);
  BT_CHECK(most > 0 || longest == 0);
  // A slot for each rank, of what it is sent, and of what it has sent.
  const int64_t slot = most * columns;
  auto* const sent = staging_.as<uint16_t>();
  uint16_t* const received = sent + slot * static_cast<int64_t>(ranks);
  for (int64_t row = 0; row < longest; row += most) {
    const std::vector<RowRange> part = RowsOfPart(rows, row, most);
    const std::vector<RowMessages> messages = MessagesOfAddBack(part, self);
    for (const RowMessages& message : messages) {
      LaunchRoundPart(stream, sent + static_cast<int64_t>(message.other) * slot,
                      all.rows(message.sent.begin, message.sent.count));
    }
    if (!messages.empty()) {
      group_->Begin();
      for (const RowMessages& message : messages) {
        const auto other = static_cast<int>(message.other);
        const auto bytes = [&](const RowRange& of) {
          return static_cast<size_t>(of.count * columns * 2);
        };
        if (message.sent.count > 0) {
          group_->Send(sent + other * slot, bytes(message.sent), other, stream);
        }
        if (message.received.count > 0) {
          group_->Receive(received + other * slot, bytes(message.received), other, stream);
        }
      }
      group_->End();
      stream.order->AddPlain("exchange of replicas");
    }
    LaunchAddParts(stream, own.rows(std::min(row, rows[self]), part[self].count),
                   all.rows(part[self].begin, part[self].count), received, slot,
                   static_cast<int>(self), static_cast<int>(ranks));
  }
}

}  // namespace baltoro::cuda
