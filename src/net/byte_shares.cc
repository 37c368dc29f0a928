#include "net/byte_shares.h"

#include <algorithm>

namespace baltoro {

std::shared_ptr<ByteShares::Share> ByteShares::Of(const std::string& client) {
  const std::lock_guard lock(mutex_);
  if (shares_.size() >= sweep_at_) {
    std::erase_if(shares_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, 2 * shares_.size());
  }
  std::weak_ptr<Share>& known = shares_[client];
  std::shared_ptr<Share> share = known.lock();
  if (share == nullptr) known = share = std::make_shared<Share>(0);
  return share;
}

}  // namespace baltoro
