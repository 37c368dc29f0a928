#include "comm/symmetric/nccl_ranks.h"

#include <algorithm>
#include <vector>

#include "comm/symmetric/merge_parts.h"
#include "ops/cuda/cuda_ops.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{32} << 20;  // or one row

void CopyRows(const OpContext& ctx,
              void* to,
              size_t to_pitch,
              const void* from,
              size_t from_pitch,
              size_t width,
              int64_t rows) {
  if (width == 0 || rows == 0) return;
  CheckCuda(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, static_cast<size_t>(rows),
                              cudaMemcpyDeviceToDevice, StreamOf(ctx)),
            "a copy of rows");
}

}  // namespace

Result<std::unique_ptr<NcclRanks>> NcclRanks::Create(std::unique_ptr<NcclGroup> group,
                                                     int64_t row_bytes,
                                                     int64_t rows_max) {
  // A row as it is received, and as it is sent.
  const int64_t row = 2 * (row_bytes + 256 * group->ranks());
  const auto bytes = static_cast<size_t>(std::max(row, std::min(kStagingBytes, row * rows_max)));
  BT_ASSIGN_OR_RETURN(DeviceBuffer staging, DeviceBuffer::Create(bytes, "what ranks exchange"));
  return std::unique_ptr<NcclRanks>(new NcclRanks(std::move(group), std::move(staging)));
}

void NcclRanks::Sum(const OpContext& ctx, TensorView x) {
  BT_CHECK(x.dtype == DType::kF32 && x.contiguous());
  if (x.num_elements() == 0) return;
  group_->Sum(x.data, static_cast<size_t>(x.num_elements()), NcclType::kF32, StreamOf(ctx));
  StreamOf(ctx).order->AddPlain("sum of ranks");
}

void NcclRanks::GatherColumns(const OpContext& ctx,
                              TensorView all,
                              TensorView own,
                              std::span<const int64_t> widths) {
  BT_CHECK(all.dtype == DType::kF32 && own.dtype == DType::kF32);
  Gather(ctx, all, own, widths);
}

void NcclRanks::GatherHeads(const OpContext& ctx, TensorView all, TensorView own) {
  BT_CHECK(all.dtype == own.dtype && all.dim(1) == own.dim(1) * group_->ranks());
  const std::vector<int64_t> widths(static_cast<size_t>(group_->ranks()), own.dim(1));
  Gather(ctx, all, own, widths);
}

void NcclRanks::Gather(const OpContext& ctx,
                       const TensorView& all,
                       const TensorView& own,
                       std::span<const int64_t> widths) {
  const int64_t element = SizeOf(all.dtype), rows = all.dim(0);
  BT_CHECK(static_cast<int>(widths.size()) == group_->ranks() && own.dim(0) == rows);
  BT_CHECK(own.contiguous() && own.dim(1) == widths[static_cast<size_t>(group_->rank())]);
  int64_t row_bytes = 0;
  for (const int64_t width : widths) row_bytes += width * element;
  if (rows == 0 || row_bytes == 0) return;
  const int64_t rows_at_once = static_cast<int64_t>(staging_.bytes()) / row_bytes;
  BT_CHECK(rows_at_once > 0);
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, rows - row);
    const TensorView mine = own.rows(row, count);
    char* at = staging_.as<char>();
    group_->Begin();
    for (int rank = 0; rank < group_->ranks(); ++rank) {
      const int64_t width = widths[static_cast<size_t>(rank)];
      if (rank != group_->rank()) {
        group_->Send(mine.data, static_cast<size_t>(mine.num_elements() * element), rank,
                     StreamOf(ctx));
        group_->Receive(at, static_cast<size_t>(count * width * element), rank, StreamOf(ctx));
      }
      at += count * width * element;
    }
    group_->End();
    StreamOf(ctx).order->AddPlain("exchange of ranks");
    at = staging_.as<char>();
    int64_t column = 0;
    for (int rank = 0; rank < group_->ranks(); ++rank) {
      const int64_t width = widths[static_cast<size_t>(rank)];
      const auto bytes = static_cast<size_t>(width * element);
      CopyRows(ctx, all.rows(row, count).columns(column, width).data,
               static_cast<size_t>(all.stride[0] * element),
               rank == group_->rank() ? mine.data : at, bytes, bytes, count);
      at += count * width * element;
      column += width;
    }
  }
}

void NcclRanks::MergeHeads(const OpContext& ctx,
                           TensorView own,
                           TensorView partial,
                           TensorView lse) {
  const int64_t ranks = group_->ranks(), rows = own.dim(0);
  const int64_t heads = lse.dim(1) / ranks, width = own.dim(1);
  BT_CHECK(lse.dim(1) == heads * ranks && partial.dim(1) == width * ranks);
  BT_CHECK(own.dtype == DType::kBf16 && partial.dtype == DType::kBf16 && lse.dtype == DType::kF32);
  if (rows == 0 || width == 0) return;
  const auto padded = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
  // What one rank gives another for one row: parts, then sums; each together for all rows.
  const int64_t part = width * 2, sums = heads * 4;
  const int64_t room = static_cast<int64_t>(staging_.bytes()) / 2 / ranks - 32;
  const int64_t rows_at_once = room / (part + sums);
  BT_CHECK(rows_at_once > 0);
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, rows - row);
    const int64_t sums_at = padded(count * part), message = sums_at + padded(count * sums);
    char* const sent = staging_.as<char>();
    char* const received = sent + ranks * message;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      char* const to = (rank == group_->rank() ? received : sent) + rank * message;
      CopyRows(ctx, to, static_cast<size_t>(part),
               partial.rows(row, count).columns(rank * width, width).data,
               static_cast<size_t>(partial.stride[0] * 2), static_cast<size_t>(part), count);
      CopyRows(ctx, to + sums_at, static_cast<size_t>(sums),
               lse.rows(row, count).columns(rank * heads, heads).data,
               static_cast<size_t>(lse.stride[0] * 4), static_cast<size_t>(sums), count);
    }
    group_->Begin();
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == group_->rank()) continue;
      group_->Send(sent + rank * message, static_cast<size_t>(message), rank, StreamOf(ctx));
      group_->Receive(received + rank * message, static_cast<size_t>(message), rank, StreamOf(ctx));
    }
    group_->End();
    StreamOf(ctx).order->AddPlain("exchange of ranks");
    LaunchMergeParts(StreamOf(ctx), {.own = own.rows(row, count).as<uint16_t>(),
                                     .own_stride = own.stride[0],
                                     .parts = received,
                                     .message_bytes = message,
                                     .sums_at = sums_at,
                                     .ranks = static_cast<int>(ranks),
                                     .rows = static_cast<int>(count),
                                     .heads = static_cast<int>(heads),
                                     .value = static_cast<int>(width / heads)});
  }
}

void NcclRanks::SendToNextStage(const OpContext& ctx, TensorView x) {
  BT_CHECK(x.dtype == DType::kF32 && x.contiguous());
  if (x.num_elements() == 0) return;
  group_->Send(x.data, static_cast<size_t>(x.num_elements() * 4), group_->rank() + 1,
               StreamOf(ctx));
}

void NcclRanks::ReceiveFromStageBefore(const OpContext& ctx, TensorView x) {
  BT_CHECK(x.dtype == DType::kF32 && x.contiguous());
  if (x.num_elements() == 0) return;
  group_->Receive(x.data, static_cast<size_t>(x.num_elements() * 4), group_->rank() - 1,
                  StreamOf(ctx));
}

}  // namespace baltoro::cuda
