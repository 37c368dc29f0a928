#pragma once

// Which large things of requests an engine process holds: constraints, pictures. The bytes of each
// travel once, with the first request that has it, and the later ones name it. This is the account
// of one kind of them; it says what is to be sent and has none of the bytes of pictures. Guarded by
// its owner.

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "request/shared_bytes.h"

namespace baltoro {

// By what a thing is found again.
class CarriedKey {
 public:
  // By its bytes, which the account then keeps.
  static CarriedKey OfBytes(const SharedBytes& bytes);
  // By a hash of its bytes that no client can choose, among those of the same salt: whoever has
  // another one does not learn from the time that it takes whether the thing is there.
  static CarriedKey OfHash(const std::array<uint8_t, 16>& hash, const std::string& salt);

  bool operator==(const CarriedKey&) const = default;
  size_t hash() const { return number_; }

 private:
  size_t number_ = 0;  // first: unequal ones are told apart by it
  std::array<uint8_t, 16> hash_ = {};
  std::string salt_;
  SharedBytes bytes_;
};

struct CarriedThing {
  CarriedKey key;
  int64_t size = 0;  // bytes
};

class CarriedThings {
 public:
  struct Limits {
    const char* what = "";               // they are, for whoever is refused
    int64_t bytes_max = 0;               // held, and so in use
    bool always_one_request = false;     // what a single request has may be more, if it is alone
    int64_t idle_bytes_max = INT64_MAX;  // held that no open request uses
    size_t idle_max = 256;               // likewise, things
  };

  struct Use {
    uint64_t name = 0;
    bool is_new = false;  // its bytes must be sent
  };

  explicit CarriedThings(const Limits& limits) : limits_(limits) {}

  // How many bytes would be new of these things of one request, which may have one of them twice.
  // kInvalidArgument if they are more than may ever be held, kResourceExhausted if they do not fit
  // beside those in use. Changes nothing.
  Result<int64_t> CheckRoom(std::span<const CarriedThing> things) const;
  // The thing is used until it is released once for each Take. There must be room. A new one has
  // the name after `last_name`, which is from 1 on, and never given twice.
  Use Take(const CarriedThing& thing, uint64_t& last_name);
  // No-op for a name that it does not hold: of a process that is gone.
  void Release(uint64_t name);
  // Names that stand for nothing any more, each told once: after any of the two above.
  std::vector<uint64_t> TakeDropped();
  // The process is gone, and all that it held.
  void Clear();

  int64_t num_bytes() const { return bytes_; }
  size_t num_idle() const { return idle_.size(); }

 private:
  struct Entry {
    CarriedThing thing;
    uint64_t name = 0;
    int64_t users = 0;
  };
  using Place = std::list<Entry>::iterator;
  struct KeyHash {
    size_t operator()(const CarriedKey& key) const { return key.hash(); }
  };

  void DropOldestIdle();

  const Limits limits_;
  std::list<Entry> used_, idle_;  // idle_: the longest idle first
  std::unordered_map<CarriedKey, Place, KeyHash> by_key_;
  std::unordered_map<uint64_t, Place> by_name_;
  int64_t bytes_ = 0, used_bytes_ = 0;
  std::vector<uint64_t> dropped_;  // that the process has not been told of
};

}  // namespace baltoro
