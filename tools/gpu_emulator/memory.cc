#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "machine.h"

namespace emu {
namespace {

struct Allocation {
  uint64_t bytes;
  std::unique_ptr<Written> written;  // none without notes
};

std::mutex mutex;
std::map<uint64_t, Allocation>& Ranges() {
  static auto* ranges = new std::map<uint64_t, Allocation>;
  return *ranges;
}
std::atomic<uint64_t> version{1};

// Chunks with bits, and the device whose kernel set the first of them.
std::vector<std::pair<uint64_t, int>>& Touched() {
  static auto* touched = new std::vector<std::pair<uint64_t, int>>;
  return *touched;
}

// Pages that nobody touches take no memory.
template <class T>
T* Zeros(uint64_t count) {
  void* data = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) Die("no memory for what kernels have written");
  return static_cast<T*>(data);
}

constexpr uint64_t kWordBytes = 128;  // of memory, a word of bits

// Calls with each word of bits that the bytes meet, and which of its bits they are.
template <class F>
void ForWords(uint64_t from, uint64_t to, F each) {
  const uint64_t first = from / 4, last = (to - 1) / 4;
  for (uint64_t word = first / 32; word <= last / 32; ++word) {
    uint32_t bits = ~0u;
    if (word == first / 32) bits &= ~0u << (first % 32);
    if (word == last / 32) bits &= ~0u >> (31 - last % 32);
    if (each(word, bits)) return;
  }
}

}  // namespace

Written::Written(uint64_t from, uint64_t bytes)
    : from_(from),
      whole_((bytes + kWordBytes - 1) / kWordBytes),
      chunks_((bytes + kChunk - 1) / kChunk),
      words_(Zeros<uint32_t>(whole_)),
      touched_(Zeros<uint8_t>(chunks_)) {}

Written::~Written() {
  munmap(words_, whole_ * sizeof *words_);
  munmap(touched_, chunks_);
}

void Written::Set(uint64_t from, uint64_t to, int device) {
  from -= from_;
  to -= from_;
  for (uint64_t chunk = from / kChunk; chunk <= (to - 1) / kChunk; ++chunk) {
    if (touched_[chunk] != 0) continue;
    touched_[chunk] = 1;
    Touched().emplace_back(from_ + chunk * kChunk, device);
  }
  ForWords(from, to, [this](uint64_t word, uint32_t bits) {
    words_[word] |= bits;
    return false;
  });
}

void Written::Clear(uint64_t from, uint64_t to) {
  from -= from_;
  to = std::min(to - from_, whole_ * kWordBytes);
  for (uint64_t chunk = from / kChunk; chunk <= (to - 1) / kChunk; ++chunk) {
    if (touched_[chunk] == 0) continue;
    const uint64_t begin = chunk * kChunk, end = begin + kChunk;
    if (from <= begin && to >= end) touched_[chunk] = 0;
    ForWords(std::max(from, begin), std::min(to, end), [this](uint64_t word, uint32_t bits) {
      words_[word] &= ~bits;
      return false;
    });
  }
}

bool Written::Any(uint64_t from, uint64_t to) const {
  bool any = false;
  ForWords(from - from_, to - from_, [this, &any](uint64_t word, uint32_t bits) {
    any = (words_[word] & bits) != 0;
    return any;
  });
  return any;
}

uint64_t RangesVersion() {
  return version.load(std::memory_order_relaxed);
}

void AddRange(const void* from, uint64_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(from);
  Allocation allocation = {bytes, nullptr};
  if (TheOptions().notes && bytes > 0) allocation.written = std::make_unique<Written>(begin, bytes);
  const std::lock_guard lock(mutex);
  Ranges()[begin] = std::move(allocation);
}

bool RemoveRange(const void* from) {
  const std::lock_guard lock(mutex);
  version.fetch_add(1);
  return Ranges().erase(reinterpret_cast<uint64_t>(from)) == 1;
}

bool FindRange(uint64_t address, Range& range) {
  const std::lock_guard lock(mutex);
  auto it = Ranges().upper_bound(address);
  if (it == Ranges().begin()) return false;
  --it;
  if (address >= it->first + it->second.bytes) return false;
  range = {it->first, it->first + it->second.bytes, RangesVersion(), it->second.written.get()};
  return true;
}

void HostWrote(const void* from, uint64_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(from);
  Range range;
  if (bytes == 0 || !FindRange(begin, range) || range.written == nullptr) return;
  range.written->Clear(begin, std::min(begin + bytes, range.to));
}

void HostWaited(int device) {
  std::erase_if(Touched(), [device](const std::pair<uint64_t, int>& chunk) {
    if (chunk.second != device) return false;
    Range range;
    if (FindRange(chunk.first, range) && range.written != nullptr) {
      const uint64_t begin =
          range.from + (chunk.first - range.from) / Written::kChunk * Written::kChunk;
      range.written->Clear(begin, begin + Written::kChunk);
    }
    return true;
  });
}

std::string DescribeAddress(uint64_t address) {
  const std::lock_guard lock(mutex);
  char text[200];
  auto it = Ranges().upper_bound(address);
  if (it == Ranges().begin()) return "below every allocation";
  --it;
  const uint64_t past = address - it->first, bytes = it->second.bytes;
  if (past < bytes) {
    std::snprintf(text, sizeof text, "byte %llu of an allocation of %llu", (unsigned long long)past,
                  (unsigned long long)bytes);
  } else {
    std::snprintf(text, sizeof text, "%llu bytes behind the end of an allocation of %llu",
                  (unsigned long long)(past - bytes), (unsigned long long)bytes);
  }
  return text;
}

}  // namespace emu
