#pragma once

// The object type of Json: its members in the order in which they came, and any of them found in a
// time that does not grow with their number. Small objects, nearly all, are searched from the first
// member on; larger ones have an index, a table of places by the hash of the key.
//
// Erasing moves what comes behind, as in a vector. Const functions may run on several threads at
// once. Keys must not be changed through an iterator.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"

namespace baltoro {

// The parameters after T are those that nlohmann::basic_json hands to its object type; neither an
// order nor an allocator of entries with constant keys (which a vector could only copy) is of use.
template <class Key, class T, class = std::less<Key>, class = std::allocator<T>>
class OrderedObject {
 public:
  using key_type = Key;
  using mapped_type = T;
  using value_type = std::pair<Key, T>;
  using Entries = std::vector<value_type>;
  using iterator = typename Entries::iterator;
  using const_iterator = typename Entries::const_iterator;
  using size_type = typename Entries::size_type;
  using difference_type = typename Entries::difference_type;
  using key_compare = std::equal_to<>;

  OrderedObject() = default;
  OrderedObject(std::initializer_list<value_type> init) { insert(init.begin(), init.end()); }
  template <class It>
  OrderedObject(It first, It last) {
    insert(first, last);
  }

  iterator begin() { return entries_.begin(); }
  iterator end() { return entries_.end(); }
  const_iterator begin() const { return entries_.begin(); }
  const_iterator end() const { return entries_.end(); }
  const_iterator cbegin() const { return entries_.cbegin(); }
  const_iterator cend() const { return entries_.cend(); }
  size_type size() const { return entries_.size(); }
  size_type max_size() const { return kPlacesMax; }
  bool empty() const { return entries_.empty(); }
  void clear() {
    entries_.clear();
    table_.clear();
  }

  iterator find(std::string_view key) { return begin() + Offset(Place(key)); }
  const_iterator find(std::string_view key) const { return begin() + Offset(Place(key)); }
  size_type count(std::string_view key) const { return Place(key) < size() ? 1 : 0; }

  // The member of that key, made of `value` if there was none.
  template <class K, class V>
  std::pair<iterator, bool> emplace(K&& key, V&& value) {
    const size_t slot = table_.empty() ? 0 : Slot(key);
    const size_t place = table_.empty() ? Search(key) : PlaceIn(slot);
    if (place < size()) return {begin() + Offset(place), false};
    entries_.emplace_back(std::forward<K>(key), std::forward<V>(value));
    if (!table_.empty()) table_[slot] = static_cast<uint32_t>(size());
    if (size() > kSmall && 2 * size() > table_.size()) IndexAll();
    return {begin() + Offset(place), true};
  }
  template <class K>
  T& operator[](K&& key) {
    return emplace(std::forward<K>(key), T()).first->second;
  }
  std::pair<iterator, bool> insert(value_type entry) {
    return emplace(std::move(entry.first), std::move(entry.second));
  }
  template <class It>
  void insert(It first, It last) {
    for (; first != last; ++first) emplace(first->first, first->second);
  }

  size_type erase(std::string_view key) {
    const size_t place = Place(key);
    if (place == size()) return 0;
    erase(begin() + Offset(place));
    return 1;
  }
  iterator erase(const_iterator first, const_iterator last) {
    const iterator next = entries_.erase(first, last);
    IndexAll();
    return next;
  }
  iterator erase(const_iterator at) { return erase(at, at + 1); }
  iterator erase(iterator at) { return erase(const_iterator(at)); }

  friend bool operator==(const OrderedObject& a, const OrderedObject& b) {
    return a.entries_ == b.entries_;
  }
  friend auto operator<=>(const OrderedObject& a, const OrderedObject& b) {
    return a.entries_ <=> b.entries_;
  }

 private:
  static constexpr size_t kSmall = 16;  // members that are searched without an index
  static constexpr size_t kPlacesMax = size_t{1} << 31;

  static difference_type Offset(size_t place) { return static_cast<difference_type>(place); }

  // The place of the member; size() if there is none.
  size_t Place(std::string_view key) const {
    return table_.empty() ? Search(key) : PlaceIn(Slot(key));
  }
  size_t PlaceIn(size_t slot) const { return table_[slot] == 0 ? size() : table_[slot] - 1; }
  size_t Search(std::string_view key) const {
    size_t place = 0;
    while (place < size() && std::string_view(entries_[place].first) != key) ++place;
    return place;
  }

  // The slot that holds the key's place, or the empty one where it belongs.
  size_t Slot(std::string_view key) const {
    const size_t mask = table_.size() - 1;
    size_t slot = KeyedHash(key) & mask;
    while (table_[slot] != 0 && std::string_view(entries_[table_[slot] - 1].first) != key) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }
  void IndexAll() {
    table_.clear();
    if (size() <= kSmall) return;
    size_t slots = 4 * kSmall;
    while (slots < 4 * size()) slots *= 2;
    table_.resize(slots);
    for (size_t i = 0; i < size(); ++i) {
      table_[Slot(entries_[i].first)] = static_cast<uint32_t>(i + 1);
    }
  }

  Entries entries_;
  // Empty while the object is small; else a power of two, at least twice the number of members:
  // 0, or a place + 1, at the first free slot from the key's hash on.
  std::vector<uint32_t> table_;
};

}  // namespace baltoro
