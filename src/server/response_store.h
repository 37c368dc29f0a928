#pragma once

// Answers of /v1/responses that a client may read again or continue, in memory and bounded: the
// oldest go first. Any thread.

#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/clock.h"

namespace baltoro {

struct ResponseStoreLimits {
  size_t entries = 1000;
  size_t bytes = size_t{64} << 20;  // of ids, owners, responses and items
  Seconds age = 3600;
};

struct StoredResponse {
  std::string response;    // as it was answered
  std::string items;       // the conversation up to and with it: a JSON list of items
  size_t input_items = 0;  // the first of them, which are not its own output
  bool pictures = false;   // there are some in `items`
};

class ResponseStore {
 public:
  // `clock` must outlive this.
  explicit ResponseStore(const Clock& clock, ResponseStoreLimits limits = {})
      : clock_(clock), limits_(limits) {}

  // One that is larger than the store is not kept. `owner`: who alone may see it.
  void Put(const std::string& id, std::string owner, StoredResponse stored);
  // Empty as well when it is another owner's: nobody learns which ids exist.
  std::optional<StoredResponse> Get(const std::string& id, const std::string& owner);
  // Whether there are pictures in it; false where there is none.
  bool HoldsPictures(const std::string& id, const std::string& owner) const;
  // Whether there was one.
  bool Erase(const std::string& id, const std::string& owner);

  size_t entries() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::string id, owner;
    StoredResponse stored;
    Seconds at = 0;
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;  // oldest first

  Entries::const_iterator Find(const std::string& id, const std::string& owner) const;
  void Remove(Entries::const_iterator entry);
  void DropOld();

  const Clock& clock_;
  const ResponseStoreLimits limits_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> by_id_;
  size_t bytes_ = 0;
};

}  // namespace baltoro
