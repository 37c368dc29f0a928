#pragma once

// Addresses of memory instructions, checked.

#include "machine.h"

namespace emu {

enum class Space { kHost, kShared, kCluster };

// A 32-bit address of the cluster's window: bits 24 and up are the rank of a block plus one, or 0
// for one's own.
inline Block& BlockOfClusterAddress(const Warp& w, const Inst& i, uint32_t address) {
  const uint32_t rank = address >> 24;
  if (rank == 0) return *w.block;
  if (rank > w.block->cluster->blocks.size())
    Fault(w, i, "address of a block that is not in the cluster");
  return *w.block->cluster->blocks[rank - 1];
}

inline char* SharedPointer(
    const Warp& w, const Inst& i, Block& block, uint64_t offset, uint64_t bytes, uint64_t align) {
  if (TheOptions().check_memory && (offset < kSharedBase || offset + bytes > block.shared_bytes)) {
    Fault(w, i,
          "shared memory: " + std::to_string(bytes) + " bytes at " +
              std::to_string(int64_t(offset) - int64_t(kSharedBase)) + " of " +
              std::to_string(block.shared_bytes - kSharedBase));
  }
  if (offset % align != 0)
    Fault(w, i,
          "shared memory: address " + std::to_string(offset) + " is not a multiple of " +
              std::to_string(align));
  return block.shared + offset;
}

inline bool InShared(const Block& block, uint64_t from, uint64_t to) {
  const auto base = reinterpret_cast<uint64_t>(block.shared);
  return from >= base + kSharedBase && to <= base + block.shared_bytes;
}

// Global, generic, local and parameter memory are the host's addresses.
inline bool HostAllowed(const Warp& w, const Inst& i, uint64_t from, uint64_t to) {
  if (i.range.version == RangesVersion() && from >= i.range.from && to <= i.range.to) return true;
  const auto local = reinterpret_cast<uint64_t>(w.local),
             parameters = reinterpret_cast<uint64_t>(w.block->launch->parameters);
  const ptx::Kernel& k = *w.program->kernel;
  if (from >= parameters && to <= parameters + k.parameter_bytes) return true;
  if (from >= local && to <= local + k.local_bytes * kLanes) return true;
  for (const Block* block : w.block->cluster->blocks)
    if (InShared(*block, from, to)) return true;
  return Allowed(from, to, i.range);
}

inline void CheckHost(
    const Warp& w, const Inst& i, uint64_t from, uint64_t bytes, uint64_t align, int lane) {
  if (from % align != 0)
    Fault(
        w, i,
        "lane " + std::to_string(lane) + ": address is not a multiple of " + std::to_string(align));
  if (TheOptions().check_memory && !HostAllowed(w, i, from, from + bytes)) {
    Fault(w, i,
          "lane " + std::to_string(lane) + ": " + std::to_string(bytes) +
              " bytes at no allocation: " + DescribeAddress(from));
  }
}

}  // namespace emu
