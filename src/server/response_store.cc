#include "server/response_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace baltoro {
namespace {

struct CountedText {
  PictureText text;
  ByteHold hold;
};

}  // namespace

Result<KeptConversation> ResponseStore::Keep(const std::string& client,
                                             std::string items,
                                             std::vector<PictureText> pictures) {
  KeptConversation kept;
  for (PictureText& picture : pictures) {
    kept.pictures.push_back(Share(client, std::move(picture)));
  }
  const auto share = bytes_.Of(client);
  kept.hold = ByteHold(bytes_, share, items.size());
  kept.items = std::move(items);
  while (!bytes_.Fits(*share, limits_.bytes)) {
    Entries dropped;  // what it held is given back at the end of each turn
    const std::lock_guard lock(mutex_);
    if (DropOldest(client, dropped)) continue;
    return Status(Code::kResourceExhausted,
                  "the conversations that are kept for you while their answers are made take too "
                  "much memory; try again later, or send store: false");
  }
  return kept;
}

PictureText ResponseStore::Share(const std::string& client, PictureText picture) {
  const std::pair<std::string, Sha256Digest> name(client, Sha256(*picture));
  const std::lock_guard lock(mutex_);
  if (pictures_.size() >= sweep_at_) {
    std::erase_if(pictures_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, 2 * pictures_.size());
  }
  std::weak_ptr<const std::string>& known = pictures_[name];
  if (PictureText here = known.lock()) return here;
  const auto counted = std::make_shared<CountedText>();
  counted->text = std::move(picture);
  counted->hold = ByteHold(bytes_, bytes_.Of(client), counted->text->size());
  PictureText out(counted, counted->text.get());
  known = out;
  return out;
}

void ResponseStore::Put(const std::string& id,
                        std::string owner,
                        const std::string& client,
                        StoredResponse stored) {
  // The items before the answer are a part of those with it, and no longer needed by themselves.
  stored.conversation.items = std::string();
  stored.conversation.hold = ByteHold();
  const auto share = bytes_.Of(client);
  const auto count = counts_.Of(client);
  const size_t bytes = 2 * id.size() + owner.size() + client.size() + stored.response.size() +
                       stored.items.size() + sizeof(Entry) + sizeof(StoredResponse);
  Entries dropped;
  const std::lock_guard lock(mutex_);
  if (const auto known = by_id_.find(id); known != by_id_.end()) Remove(known->second, dropped);
  entries_.push_back({.id = id,
                      .owner = std::move(owner),
                      .client = client,
                      .stored = std::make_shared<const StoredResponse>(std::move(stored)),
                      .at = clock_.Now(),
                      .bytes = ByteHold(bytes_, share, bytes),
                      .one = ByteHold(counts_, count, 1)});
  by_id_[id] = std::prev(entries_.end());
  DropOld(dropped);
  // One that is too large even alone drives out nothing.
  if (bytes > limits_.bytes / 2) return Remove(std::prev(entries_.end()), dropped);
  while (!bytes_.Fits(*share, limits_.bytes) || !counts_.Fits(*count, limits_.entries)) {
    Entries one;
    if (!DropOldest(client, one)) break;
  }
}

std::shared_ptr<const StoredResponse> ResponseStore::Get(const std::string& id,
                                                         const std::string& owner) {
  Entries dropped;
  const std::lock_guard lock(mutex_);
  DropOld(dropped);
  const auto entry = Find(id, owner);
  return entry == entries_.end() ? nullptr : entry->stored;
}

bool ResponseStore::Erase(const std::string& id, const std::string& owner) {
  Entries dropped;
  const std::lock_guard lock(mutex_);
  DropOld(dropped);
  const auto entry = Find(id, owner);
  if (entry == entries_.end()) return false;
  Remove(entry, dropped);
  return true;
}

size_t ResponseStore::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

ResponseStore::Entries::iterator ResponseStore::Find(const std::string& id,
                                                     const std::string& owner) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return entries_.end();
  return found->second;
}

void ResponseStore::Remove(Entries::iterator entry, Entries& out) {
  by_id_.erase(entry->id);
  out.splice(out.end(), entries_, entry);
}

void ResponseStore::DropOld(Entries& out) {
  const Seconds now = clock_.Now();
  while (!entries_.empty() && now - entries_.front().at > limits_.age) {
    Remove(entries_.begin(), out);
  }
}

bool ResponseStore::DropOldest(const std::string& client, Entries& out) {
  const auto oldest = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return entry.client == client; });
  if (oldest == entries_.end()) return false;
  Remove(oldest, out);
  return true;
}

}  // namespace baltoro
