#pragma once

// Answers of /v1/responses that a client may read again or continue, in memory and bounded, and the
// conversations of those that are being made. A client's answers go oldest first, when their time
// is over or when it needs their room: no client's answers drive out another's. Any thread.

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/keyed_hash.h"
#include "base/status.h"
#include "net/byte_shares.h"
#include "server/given_picture.h"
#include "server/sha256.h"

namespace baltoro {

// Of all clients; of each what it leaves to all others (ByteShares): alone half.
struct ResponseStoreLimits {
  size_t entries = 2000;
  size_t bytes = size_t{256} << 20;  // of ids, owners, responses, items and pictures
  Seconds age = 3600;
};

// What a response was made from. The items of a conversation are a JSON list; where one of them
// shows a picture, its image_url is the place of that in `pictures`.
struct KeptConversation {
  std::string items;
  std::vector<PictureText> pictures;
  ByteHold hold;  // of `items`; pictures count for themselves
};

struct StoredResponse {
  std::string response;                // as it was answered
  std::string items;                   // the conversation up to and with it
  size_t input_items = 0;              // the first of them, which are not its own output
  KeptConversation conversation = {};  // what it was made from; its pictures are those of `items`
};

class ResponseStore {
 public:
  // `clock` must outlive this.
  explicit ResponseStore(const Clock& clock, ResponseStoreLimits limits = {})
      : clock_(clock), limits_(limits) {}

  // Counts what a conversation takes for `client` while its answer is made. A picture that is here
  // for the client already is shared, and counts once. kResourceExhausted where there is no room,
  // with all that is stored for the client gone. Takes a while where pictures are large.
  Result<KeptConversation> Keep(const std::string& client,
                                std::string items,
                                std::vector<PictureText> pictures);

  // `owner`: who alone may see it. `client`: for whom it counts. One that there is no room for is
  // not stored.
  void Put(const std::string& id,
           std::string owner,
           const std::string& client,
           StoredResponse stored);
  // Null as well when it is another owner's: nobody learns which ids exist.
  std::shared_ptr<const StoredResponse> Get(const std::string& id, const std::string& owner);
  // Whether there was one.
  bool Erase(const std::string& id, const std::string& owner);

  size_t entries() const;
  size_t bytes() const { return bytes_.all(); }

 private:
  struct Entry {
    std::string id, owner, client;
    std::shared_ptr<const StoredResponse> stored;
    Seconds at = 0;
    ByteHold bytes, one;
  };
  using Entries = std::list<Entry>;  // oldest first
  // By client and content.
  using Pictures = std::map<std::pair<std::string, Sha256Digest>, std::weak_ptr<const std::string>>;

  Entries::iterator Find(const std::string& id, const std::string& owner);
  // Those below move what they remove to `out`, to be destroyed without the lock.
  void Remove(Entries::iterator entry, Entries& out);
  void DropOld(Entries& out);
  bool DropOldest(const std::string& client, Entries& out);
  PictureText Share(const std::string& client, PictureText picture);

  const Clock& clock_;
  const ResponseStoreLimits limits_;
  ByteShares bytes_, counts_;  // outlive all that counts in them
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator, KeyedStringHash> by_id_;
  Pictures pictures_;
  size_t sweep_at_ = 64;  // pictures; then those are dropped that nobody has
};

}  // namespace baltoro
