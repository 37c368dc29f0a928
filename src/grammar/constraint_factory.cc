#include "grammar/constraint_factory.h"

#include <future>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "grammar/constrained_output.h"
#include "grammar/key_hash.h"
#include "grammar/mask_store.h"
#include "grammar/mask_warmup.h"
#include "grammar/output_constraint.h"
#include "request/stop_ends.h"

namespace baltoro {

namespace {

constexpr size_t kConstraintsMax = 256;
constexpr int64_t kConstraintBytesMax = int64_t{64} << 20;

struct KeyHasher {
  size_t operator()(const Key128& key) const { return key.low; }
};

// The constraints that were read last, by their texts. Any thread.
class ConstraintCache {
 public:
  using Value = std::shared_ptr<const OutputConstraint>;

  Value Find(const Key128& key) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->value;
  }

  void Keep(const Key128& key, Value value, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > kConstraintBytesMax || places_.contains(key)) return;
    entries_.push_front({key, std::move(value), bytes});
    places_[key] = entries_.begin();
    bytes_ += bytes;
    while (entries_.size() > kConstraintsMax || bytes_ > kConstraintBytesMax) {
      bytes_ -= entries_.back().bytes;
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }

 private:
  struct Entry {
    Key128 key;
    Value value;
    int64_t bytes = 0;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::unordered_map<Key128, std::list<Entry>::iterator, KeyHasher> places_;
  int64_t bytes_ = 0;
};

using TriePtr = std::shared_ptr<const TokenTrie>;

Result<TriePtr> LoadTrie(const std::string& model_dir,
                         int32_t vocab_size,
                         const std::shared_ptr<MaskStore>& store) {
  auto loaded = Tokenizer::Load(model_dir);
  if (!loaded.ok()) {
    BT_LOG(Error, "output constraints: {}", loaded.status().message());
    return Status(Code::kInternal, "output formats are not available: no tokenizer could be read");
  }
  const auto tokenizer = std::move(loaded).value();
  TriePtr trie = TokenTrie::Make(*tokenizer, vocab_size);
  BT_LOG(Debug, "output constraints: tries of {} tokens, {} MiB", vocab_size,
         trie->num_bytes() >> 20);
  WarmMaskStore(trie, store);
  return trie;
}

class Factory final : public ConstraintFactory {
 public:
  Factory(std::future<Result<TriePtr>> trie, std::shared_ptr<MaskStore> store)
      : trie_(trie.share()), store_(std::move(store)) {}

  Result<std::unique_ptr<TokenConstraint>> Make(const Request& request) override {
    BT_ASSIGN_OR_RETURN(const TriePtr trie, trie_.get());
    KeyHash hash(0x636F6E73u);
    hash.AddBytes(request.constraint.str());
    ConstraintCache::Value constraint = cache_.Find(hash.key());
    if (constraint == nullptr) {
      // Written by the server itself: no client can have damaged it.
      auto parsed = OutputConstraint::Parse(request.constraint.str());
      if (!parsed.ok()) return Status(Code::kInternal, parsed.status().message());
      constraint = std::make_shared<const OutputConstraint>(std::move(parsed).value());
      int64_t bytes = 256;
      if (constraint->grammar) bytes += constraint->grammar->num_bytes();
      for (const auto& banned : constraint->banned_sequences) {
        bytes += static_cast<int64_t>(32 + banned.size() * sizeof(TokenId));
      }
      cache_.Keep(hash.key(), constraint, bytes);
    }
    // Tokens that do not end the request are no way out of a grammar: where nothing else may
    // follow, the mask is empty, and that ends it.
    return std::unique_ptr<TokenConstraint>(
        std::make_unique<ConstrainedOutput>(constraint, StopEnds(request.stop), trie, store_));
  }

 private:
  const std::shared_future<Result<TriePtr>> trie_;
  ConstraintCache cache_;
  const std::shared_ptr<MaskStore> store_;
};

}  // namespace

std::shared_ptr<ConstraintFactory> MakeConstraintFactory(const std::string& model_dir,
                                                         int32_t vocab_size) {
  auto store = std::make_shared<MaskStore>();
  auto trie = std::async(std::launch::async, LoadTrie, model_dir, vocab_size, store);
  return std::make_shared<Factory>(std::move(trie), std::move(store));
}

std::shared_ptr<ConstraintFactory> MakeConstraintFactory(std::shared_ptr<const TokenTrie> trie) {
  std::promise<Result<TriePtr>> made;
  made.set_value(Result<TriePtr>(std::move(trie)));
  return std::make_shared<Factory>(made.get_future(), std::make_shared<MaskStore>());
}

}  // namespace baltoro
