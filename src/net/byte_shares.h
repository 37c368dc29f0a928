#pragma once

// Bytes that a server holds for its clients, answers that they have not taken yet or requests that
// are not complete: of all clients, and of each. One of them may hold what is left to all others,
// and no more: alone half of the limit, n such clients each the (n + 1)th part, so that a newcomer
// always finds as much room as whoever holds most. Any thread.

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/keyed_hash.h"

namespace baltoro {

class ByteShares {
 public:
  using Share = std::atomic<size_t>;

  // The share of this client (ClientOfPeer), the same for all who keep it at the same time.
  std::shared_ptr<Share> Of(const std::string& client);

  void Add(Share& share, size_t bytes) {
    share += bytes;
    all_ += bytes;
  }
  void Take(Share& share, size_t bytes) {
    share -= bytes;
    all_ -= bytes;
  }
  // Whether the client, with what was added, keeps to its share of `limit`.
  bool Fits(const Share& share, size_t limit) const { return all_ + share <= limit; }
  size_t all() const { return all_; }

 private:
  std::atomic<size_t> all_ = 0;
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<Share>, KeyedStringHash, std::equal_to<>> shares_;
  size_t sweep_at_ = 64;  // entries; then those are dropped whose clients are gone
};

// Bytes (or whatever is counted) in a client's share for as long as this lives, on any thread. The
// shares must outlive it.
class ByteHold {
 public:
  ByteHold() = default;
  ByteHold(ByteShares& shares, std::shared_ptr<ByteShares::Share> share, size_t bytes)
      : shares_(&shares), share_(std::move(share)), bytes_(bytes) {
    shares_->Add(*share_, bytes_);
  }
  ByteHold(ByteHold&& other) noexcept { *this = std::move(other); }
  ByteHold& operator=(ByteHold&& other) noexcept {
    std::swap(shares_, other.shares_);
    std::swap(share_, other.share_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ByteHold() {
    if (shares_ != nullptr) shares_->Take(*share_, bytes_);
  }

  size_t bytes() const { return bytes_; }

 private:
  ByteShares* shares_ = nullptr;  // null: holds nothing
  std::shared_ptr<ByteShares::Share> share_;
  size_t bytes_ = 0;
};

}  // namespace baltoro
