#pragma once

// Ranks tell each other plain structs and whether they are well, before they have memory in common.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "ops/rank_ops.h"

namespace baltoro::cuda {

class Meeting {
 public:
  // `exchange` must outlive this.
  Meeting(const RankExchange& exchange, int32_t rank, int32_t ranks)
      : exchange_(exchange), rank_(rank), ranks_(ranks) {}

  // What each rank says, in their order; or, on every rank, the error of the first that is not
  // well. All ranks call it, well or not.
  template <typename T>
  Result<std::vector<T>> All(const Status& own, const T& said) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<Word<T>> words(static_cast<size_t>(ranks_));
    Word<T> word = {};
    word.code = own.code();
    std::memcpy(word.message, own.message().data(),
                std::min(own.message().size(), sizeof(word.message) - 1));
    word.said = said;
    if (ranks_ == 1) {
      words[0] = word;
    } else {
      BT_RETURN_IF_ERROR(
          exchange_(std::as_bytes(std::span(&word, 1)), std::as_writable_bytes(std::span(words))));
    }
    std::vector<T> all;
    for (size_t rank = 0; rank < words.size(); ++rank) {
      const Word<T>& one = words[rank];
      if (one.code != Code::kOk) {
        return Status(one.code, "rank " + std::to_string(rank) + ": " + one.message);
      }
      all.push_back(one.said);
    }
    return all;
  }
  // Whether all are well.
  Status All(const Status& own) const { return All(own, char{0}).status(); }

  int32_t rank() const { return rank_; }
  int32_t ranks() const { return ranks_; }

 private:
  template <typename T>
  struct Word {
    Code code = Code::kOk;
    char message[300] = {};
    T said = {};
  };
  const RankExchange& exchange_;
  int32_t rank_, ranks_;
};

}  // namespace baltoro::cuda
