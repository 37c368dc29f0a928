#pragma once

// Pictures as they were cut, for the next turn of a conversation: every turn sends all of its
// pictures again, and need not wait until they are decoded again. Bounded; a client holds at most
// half, and finds its own alone, so that the time that a picture takes tells nothing of what others
// have sent. Who was used least lately goes first. Any thread.

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "request/request.h"
#include "server/sha256.h"

namespace baltoro {

struct CutPicture {
  RequestPicture picture;  // without `begin`
  int64_t pixels = 0;      // before it was scaled
};

class PictureCache {
 public:
  struct Counts {
    uint64_t queries = 0, hits = 0;  // pictures
  };

  explicit PictureCache(size_t bytes_max) : bytes_max_(bytes_max) {}

  // `file`: the hash of the picture's file. The bytes of what is found are shared with it.
  std::optional<CutPicture> Find(const std::string& client, const Sha256Digest& file);
  // One that is too large for a client is not kept.
  void Put(const std::string& client, const Sha256Digest& file, const CutPicture& picture);
  size_t bytes() const;
  Counts counts() const;

 private:
  using Name = std::pair<std::string, Sha256Digest>;
  struct Entry {
    Name name;
    CutPicture picture;
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;  // who was used least lately comes first

  // An entry is charged for more than its patches, so that small ones are bounded in number.
  static constexpr size_t kOverhead = 4096;

  void Drop(Entries::iterator entry, Entries& out);

  const size_t bytes_max_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::map<Name, Entries::iterator> by_name_;
  std::map<std::string, size_t> by_client_;  // bytes
  size_t bytes_ = 0;
  Counts counts_;
};

}  // namespace baltoro
