#pragma once

// Values as bytes, for another process or machine: little-endian numbers, texts and arrays after
// their length (u32). Reading trusts nothing: every length is checked against what is there before
// anything is allocated.

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"

namespace baltoro {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

// Appends values to what is sent.
class WireWriter {
 public:
  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void Put(bool value) { Put(static_cast<uint8_t>(value)); }
  void PutBytes(std::string_view bytes) {
    Put(static_cast<uint32_t>(bytes.size()));
    bytes_.append(bytes);
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void PutArray(std::span<const T> values) {
    Put(static_cast<uint32_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what was received. After the first value that is not there every read gives a zero, and
// ok() is false; so a decoder reads all fields and asks once.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) T Get() {
    T value{};
    if (!Has(sizeof(T))) return value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  bool GetBool();
  // An enum of which `last` is the highest value.
  template <typename T>
  T GetEnum(T last) {
    const T value = Get<T>();
    if (value <= last) return value;
    ok_ = false;
    return T{};
  }
  // More than `bytes_max` are an error.
  std::string GetBytes(size_t bytes_max = SIZE_MAX);
  template <typename T>
  std::vector<T> GetArray() {
    const size_t count = GetCount(sizeof(T));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), rest_.data(), count * sizeof(T));
    rest_.remove_prefix(count * sizeof(T));
    return values;
  }
  // A count of things that take at least `bytes_each` here; zero if they cannot be there.
  size_t GetCount(size_t bytes_each);

  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && rest_.empty(); }
  // All was read, and nothing is left.
  Status Finish(std::string_view what) const;

 private:
  bool Has(size_t bytes);
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace baltoro
