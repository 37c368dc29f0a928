#include "comm/link.h"

#include <fmt/format.h>

namespace baltoro {

const char* OperationName(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all-reduce";
    case Operation::kReduceScatter:
      return "reduce-scatter";
    case Operation::kAllGather:
      return "all-gather";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kSendReceive:
      return "send/receive";
    case Operation::kBarrier:
      return "barrier";
  }
  return "unknown operation";  // of a number that a peer sent
}

std::string DescribeMismatch(int32_t sender,
                             const MessageTag& sent,
                             size_t sent_bytes,
                             const MessageTag& due,
                             size_t due_bytes) {
  return fmt::format(
      "rank {} sent {} bytes of {} in group {:08x}, due are {} bytes of {} in {:08x}", sender,
      sent_bytes, OperationName(sent.operation), sent.group, due_bytes,
      OperationName(due.operation), due.group);
}

}  // namespace baltoro
