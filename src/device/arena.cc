#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "device/buffer.h"

namespace baltoro {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kChunkMin = size_t{1} << 20;
constexpr char kWhat[] =
    "scratch memory of a step (lower --max-num-batched-tokens or --max-num-seqs)";

// Operations cannot go on without, and have no way to say so: the world's fault, not ours, so no
// failed check.
[[noreturn]] void EndWithoutMemory(const Status& why, size_t held) {
  WriteLastLine(("out of memory: " + why.message() + "; " + std::to_string(held) +
                 " bytes are held already\n")
                    .c_str());
  std::_Exit(1);
}

}  // namespace

struct Arena::List {
  std::vector<Buffer> chunks;
  size_t current = 0;  // chunk that is being filled; those before it are full
  size_t used = 0;     // bytes taken of that chunk
};

void Arena::ListDeleter::operator()(List* list) const {
  delete list;
}

void* Arena::Allocate(size_t bytes) {
  if (chunks_ == nullptr) chunks_.reset(new List);
  List& list = *chunks_;
  const size_t rounded =
      std::max<size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
  BT_CHECK(rounded >= bytes);
  while (list.current < list.chunks.size() &&
         list.chunks[list.current].bytes() - list.used < rounded) {
    ++list.current;
    list.used = 0;
  }
  if (list.current == list.chunks.size()) {
    // Doubling keeps the number of chunks, and so the waste at their ends, small.
    const size_t want = std::max({rounded, kChunkMin, reserved_});
    Result<Buffer> chunk = Buffer::Create(want, kWhat, *memory_);
    if (!chunk.ok() && want > rounded) chunk = Buffer::Create(rounded, kWhat, *memory_);
    if (!chunk.ok()) EndWithoutMemory(chunk.status(), reserved_);
    reserved_ += chunk.value().bytes();
    list.chunks.push_back(std::move(chunk).value());
    list.used = 0;
  }
  char* at = static_cast<char*>(list.chunks[list.current].data()) + list.used;
  list.used += rounded;
  taken_ += rounded;
  peak_ = std::max(peak_, taken_);
  return at;
}

Status Arena::Reserve(size_t bytes) {
  Reset();
  if (chunks_ != nullptr) {
    const std::vector<Buffer>& held = chunks_->chunks;
    if (held.size() == 1 && held.front().bytes() >= bytes) return {};
  }
  chunks_.reset(new List);
  reserved_ = 0;
  if (bytes == 0) return {};
  BT_ASSIGN_OR_RETURN(Buffer piece, Buffer::Create(bytes, kWhat, *memory_));
  reserved_ = piece.bytes();
  chunks_->chunks.push_back(std::move(piece));
  return {};
}

void Arena::Reset() {
  taken_ = 0;
  if (chunks_ == nullptr) return;
  chunks_->current = 0;
  chunks_->used = 0;
}

}  // namespace baltoro
