// mbarriers, and copies that complete later: cp.async, cp.async.bulk, cp.async.bulk.tensor. A copy
// happens at once, or not before somebody waits for it (EMU_LATE): right programs cannot tell.

#include <algorithm>
#include <array>
#include <string>

#include "access.h"
#include "lanes.h"
#include "notes.h"
#include "tensor_map.h"

namespace emu {
namespace {

using ptx::Instruction;
using ptx::Operand;
using Kind = Operand::Kind;

// ---- mbarriers: 64 bits in shared memory

struct Mbarrier {
  uint64_t bits;
  // phase 1, magic 3, expected 16, pending 16, somebody behind a griddepcontrol.wait has arrived,
  // and a phase has ended since, bytes outstanding 26 (signed).
  static constexpr uint64_t kMagic = 5;
  uint32_t phase() const { return bits & 1; }
  bool valid() const { return (bits >> 1 & 7) == kMagic; }
  uint32_t expected() const { return bits >> 4 & 0xFFFF; }
  int32_t pending() const { return static_cast<int16_t>(bits >> 20 & 0xFFFF); }
  bool waited_arrived() const { return (bits >> 36 & 1) != 0; }
  bool waited() const { return (bits >> 37 & 1) != 0; }
  int64_t bytes() const { return static_cast<int64_t>(bits) >> 38; }
  static Mbarrier Make(uint32_t phase,
                       uint32_t expected,
                       int32_t pending,
                       int64_t bytes,
                       bool waited_arrived,
                       bool waited) {
    return {phase | kMagic << 1 | uint64_t{expected} << 4 |
            (static_cast<uint64_t>(pending) & 0xFFFF) << 20 | uint64_t{waited_arrived} << 36 |
            uint64_t{waited} << 37 | static_cast<uint64_t>(bytes) << 38};
  }
};

Mbarrier ReadBarrier(const Warp& w, const Inst& i, Block& block, uint32_t offset) {
  Mbarrier b;
  std::memcpy(&b, SharedPointer(w, i, block, offset, 8, 8), 8);
  if (!b.valid())
    Fault(w, i,
          "no mbarrier at shared address " + std::to_string(offset - kSharedBase) +
              " (not initialised, or overwritten)");
  return b;
}

// Arrivals and bytes; a phase that has none left to wait for ends. `waited`: whoever arrives is
// behind a griddepcontrol.wait, and so are those who find this phase, or a later one, ended.
void Change(const Warp& w,
            const Inst& i,
            Block& block,
            uint32_t offset,
            int32_t arrivals,
            int64_t bytes,
            bool waited) {
  const Mbarrier b = ReadBarrier(w, i, block, offset);
  uint32_t phase = b.phase();
  int32_t pending = b.pending() - arrivals;
  const int64_t outstanding = b.bytes() + bytes;
  if (pending < 0)
    Fault(w, i,
          "mbarrier at shared address " + std::to_string(offset - kSharedBase) +
              ": more arrivals than the " + std::to_string(b.expected()) + " of a phase");
  if (outstanding > (1 << 20) || outstanding < -(1 << 20))
    Fault(w, i, "mbarrier: too many bytes outstanding");
  const bool waited_arrived = b.waited_arrived() || waited;
  bool has_waited = b.waited();
  if (pending == 0 && outstanding == 0) {
    phase ^= 1;
    pending = static_cast<int32_t>(b.expected());
    has_waited = waited_arrived;
  }
  const Mbarrier now =
      Mbarrier::Make(phase, b.expected(), pending, outstanding, waited_arrived, has_waited);
  std::memcpy(block.shared + offset, &now, 8);
  ++w.block->launch->effects;
}

struct Place {
  Block* block;
  uint32_t offset;
};

// The address of an mbarrier or of shared memory, of any of the spaces it may be written in.
// aux[0]: bytes of the register; aux[3] bit 0: the cluster's window.
Place SharedPlace(const Warp& w, const Inst& i, uint32_t reg, int lane, int64_t add) {
  if (i.aux[0] == 8) {
    const uint64_t address = w.At<uint64_t>(reg)[lane] + static_cast<uint64_t>(add);
    for (Block* block : w.block->cluster->blocks)
      if (InShared(*block, address, address + 1))
        return {block, static_cast<uint32_t>(address - reinterpret_cast<uint64_t>(block->shared))};
    if (address < (1u << 24)) return {w.block, static_cast<uint32_t>(address)};
    Fault(w, i, "an address that is not of shared memory");
  }
  const uint32_t address = w.At<uint32_t>(reg)[lane] + static_cast<uint32_t>(add);
  Block& block = BlockOfClusterAddress(w, i, address);
  return {&block, address & 0xFFFFFF};
}

bool InitBarrier(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const Place p = SharedPlace(w, i, i.v[0], l, i.imm);
    const uint32_t count = w.At<uint32_t>(i.v[1])[l];
    if (count == 0 || count > 0x7FFF)
      Fault(w, i, "mbarrier of " + std::to_string(count) + " arrivals");
    const Mbarrier b = Mbarrier::Make(0, count, static_cast<int32_t>(count), 0, false, false);
    std::memcpy(SharedPointer(w, i, *p.block, p.offset, 8, 8), &b, 8);
  }
  ++w.block->launch->effects;
  return false;
}

bool InvalidateBarrier(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const Place p = SharedPlace(w, i, i.v[0], __builtin_ctz(rest), i.imm);
    ReadBarrier(w, i, *p.block, p.offset);
    std::memset(p.block->shared + p.offset, 0xFF, 8);
  }
  return false;
}

// v[0] address, v[1] state or ~0, v[2] bytes or count; aux[1]: 0 arrive, 1 arrive.expect_tx, 2
// expect_tx, 3 complete_tx.
bool ArriveBarrier(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const Place p = SharedPlace(w, i, i.v[0], l, i.imm);
    if (i.v[1] != kAll) w.At<uint64_t>(i.v[1])[l] = ReadBarrier(w, i, *p.block, p.offset).phase();
    const uint32_t value = i.v[2] == kAll ? 1 : w.At<uint32_t>(i.v[2])[l];
    const bool waited = HasWaited(w, l);
    switch (i.aux[1]) {
      case 0:
        Change(w, i, *p.block, p.offset, static_cast<int32_t>(value), 0, waited);
        break;
      case 1:
        Change(w, i, *p.block, p.offset, 1, value, waited);
        break;
      case 2:
        Change(w, i, *p.block, p.offset, 0, value, false);
        break;
      default:
        Change(w, i, *p.block, p.offset, 0, -static_cast<int64_t>(value), waited);
        break;
    }
  }
  return false;
}

void RunBulk(Launch& launch, Block& block, uint32_t barrier) {
  std::vector<BulkCopy>& waiting = block.bulk;
  for (size_t n = 0; n < waiting.size();) {
    if (waiting[n].barrier == barrier) {
      const BulkCopy copy = std::move(waiting[n]);
      waiting.erase(waiting.begin() + n);
      copy.run();
      ++launch.effects;
    } else {
      ++n;
    }
  }
}

// v[0] address, v[1] predicate, v[2] state or parity; aux[1]: 1 parity; aux[2] the bytes of the
// state.
bool TestBarrier(Warp& w, const Inst& i, uint32_t m) {
  uint32_t done = 0, behind = 0;
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const Place p = SharedPlace(w, i, i.v[0], l, i.imm);
    const uint32_t parity = (i.aux[1] != 0 ? w.At<uint32_t>(i.v[2])[l]
                                           : static_cast<uint32_t>(w.At<uint64_t>(i.v[2])[l])) &
                            1;
    if (ReadBarrier(w, i, *p.block, p.offset).phase() == parity && !p.block->bulk.empty())
      RunBulk(*w.block->launch, *p.block, p.offset);
    const Mbarrier now = ReadBarrier(w, i, *p.block, p.offset);
    if (now.phase() == parity) continue;
    done |= 1u << l;
    if (now.waited()) behind |= 1u << l;
  }
  if ((behind & ~w.waited) != 0) MarkWaited(w, behind);
  w.predicates[i.v[1]] = (w.predicates[i.v[1]] & ~m) | done;
  return done != m && Spin(w);
}

bool Late(Launch& launch) {
  const int late = TheOptions().late;
  return late == 1 || (late == 2 && launch.Random());
}

// ---- cp.async

void Perform(const AsyncCopy& c) {
  std::memcpy(c.to, c.from, c.source_bytes);
  std::memset(c.to + c.source_bytes, 0, c.bytes - c.source_bytes);
}

// v[0] shared address, v[1] global, v[2] source bytes or ~0 (aux[2]: it is a predicate that ignores
// the source); imm is added to the shared address, aux[1] the bytes, v[4] added to the global
// address.
bool CopyAsync(Warp& w, const Inst& i, uint32_t m) {
  Launch& launch = *w.block->launch;
  const bool late = Late(launch);
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const Place to = SharedPlace(w, i, i.v[0], l, i.imm);
    const uint64_t from =
        w.At<uint64_t>(i.v[1])[l] + static_cast<uint64_t>(static_cast<int32_t>(i.v[4]));
    uint32_t source = i.aux[1];
    if (i.v[2] != kAll) source = std::min(source, w.At<uint32_t>(i.v[2])[l]);
    if (from % i.aux[1] != 0) Fault(w, i, "cp.async: the source is not aligned");
    if (source != 0) CheckHost(w, i, from, source, 1, l);
    HoldLoad(w, i, l, from, source);
    AsyncCopy copy{static_cast<uint32_t>(l),
                   w.copy_group[l],
                   i.aux[1],
                   source,
                   SharedPointer(w, i, *to.block, to.offset, i.aux[1], i.aux[1]),
                   reinterpret_cast<const char*>(from)};
    if (late)
      w.copies.push_back(copy);
    else
      Perform(copy);
  }
  ++launch.effects;
  return false;
}

bool CommitCopies(Warp& w, const Inst&, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) ++w.copy_group[__builtin_ctz(rest)];
  return false;
}

void FinishCopies(Warp& w, uint32_t m, int64_t pending, bool all) {
  std::erase_if(w.copies, [&](const AsyncCopy& c) {
    if ((m >> c.lane & 1) == 0) return false;
    if (!all && int64_t{c.group} >= int64_t{w.copy_group[c.lane]} - pending) return false;
    Perform(c);
    return true;
  });
}

bool WaitCopies(Warp& w, const Inst& i, uint32_t m) {
  FinishCopies(w, m, i.imm, i.aux[0] != 0);
  return false;
}

// cp.async.mbarrier.arrive: when this thread's copies are there.
bool ArriveAfterCopies(Warp& w, const Inst& i, uint32_t m) {
  FinishCopies(w, m, 0, true);
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const Place p = SharedPlace(w, i, i.v[0], l, i.imm);
    if (i.aux[1] != 0)  // .noinc: counted by init
      Change(w, i, *p.block, p.offset, 1, 0, HasWaited(w, l));
  }
  return false;
}

// ---- bulk copies

void StartBulk(const Warp& w,
               const Inst& i,
               int lane,
               Block& block,
               uint32_t barrier,
               uint32_t bytes,
               std::function<void()> move) {
  Launch& launch = *w.block->launch;
  ReadBarrier(w, i, block, barrier);
  const Warp* warp = &w;
  const Inst* inst = &i;
  Block* to = &block;
  auto run = [warp, inst, to, barrier, bytes, waited = HasWaited(w, lane), move = std::move(move)] {
    move();
    Change(*warp, *inst, *to, barrier, 0, -static_cast<int64_t>(bytes), waited);
  };
  ++launch.effects;
  if (Late(launch))
    block.bulk.push_back({&block, barrier, bytes, std::move(run)});
  else
    run();
}

// Shared from global. v[0] shared, v[1] global, v[2] bytes, v[3] the mbarrier; list: what is added
// to the three addresses, then the register of the multicast mask or ~0.
bool BulkLoad(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const uint32_t bytes = w.At<uint32_t>(i.v[2])[l];
    const Place to = SharedPlace(w, i, i.v[0], l, static_cast<int32_t>(i.list[0]));
    const Place barrier = SharedPlace(w, i, i.v[3], l, static_cast<int32_t>(i.list[2]));
    const uint64_t from =
        w.At<uint64_t>(i.v[1])[l] + static_cast<uint64_t>(static_cast<int32_t>(i.list[1]));
    if (bytes % 16 != 0) Fault(w, i, "a bulk copy of " + std::to_string(bytes) + " bytes");
    if (bytes == 0) continue;
    CheckHost(w, i, from, bytes, 16, l);
    HoldLoad(w, i, l, from, bytes);
    const uint32_t mask = i.list[3] == kAll ? 1u << to.block->rank : w.At<uint16_t>(i.list[3])[l];
    for (Block* block : w.block->cluster->blocks) {
      if ((mask >> block->rank & 1) == 0) continue;
      char* pointer = SharedPointer(w, i, *block, to.offset, bytes, 16);
      Block& signalled = i.list[3] == kAll ? *barrier.block : *block;
      StartBulk(w, i, l, signalled, barrier.offset, bytes, [pointer, from, bytes] {
        std::memcpy(pointer, reinterpret_cast<const char*>(from), bytes);
      });
    }
  }
  return false;
}

// Global from shared: v[0] global, v[1] shared, v[2] bytes. It happens at once; EMU_LATE does not
// apply.
bool BulkStore(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const uint32_t bytes = w.At<uint32_t>(i.v[2])[l];
    const Place from = SharedPlace(w, i, i.v[1], l, static_cast<int32_t>(i.list[1]));
    const uint64_t to =
        w.At<uint64_t>(i.v[0])[l] + static_cast<uint64_t>(static_cast<int32_t>(i.list[0]));
    if (bytes % 16 != 0) Fault(w, i, "a bulk copy of " + std::to_string(bytes) + " bytes");
    if (bytes == 0) continue;
    CheckHost(w, i, to, bytes, 16, l);
    HoldStore(w, i, l, to, bytes);
    std::memcpy(reinterpret_cast<char*>(to),
                SharedPointer(w, i, *from.block, from.offset, bytes, 16), bytes);
  }
  ++w.block->launch->effects;
  return false;
}

// Shared of another block of the cluster from shared: v[0] to, v[1] from, v[2] bytes, v[3] the
// mbarrier.
bool BulkBetween(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const uint32_t bytes = w.At<uint32_t>(i.v[2])[l];
    const Place to = SharedPlace(w, i, i.v[0], l, static_cast<int32_t>(i.list[0]));
    const Place from = SharedPlace(w, i, i.v[1], l, static_cast<int32_t>(i.list[1]));
    const Place barrier = SharedPlace(w, i, i.v[3], l, static_cast<int32_t>(i.list[2]));
    if (bytes % 16 != 0) Fault(w, i, "a bulk copy of " + std::to_string(bytes) + " bytes");
    char* pointer = SharedPointer(w, i, *to.block, to.offset, bytes, 16);
    const char* source = SharedPointer(w, i, *from.block, from.offset, bytes, 16);
    StartBulk(w, i, l, *barrier.block, barrier.offset, bytes,
              [pointer, source, bytes] { std::memcpy(pointer, source, bytes); });
  }
  return false;
}

// A few words to shared memory of any block of the cluster, whose mbarrier counts their bytes: v[0]
// to, v[3] the mbarrier; the list: both offsets, then aux[1] values.
bool StoreAsync(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const Place to = SharedPlace(w, i, i.v[0], l, static_cast<int32_t>(i.list[0]));
    const Place barrier = SharedPlace(w, i, i.v[3], l, static_cast<int32_t>(i.list[1]));
    std::array<uint32_t, 4> values = {};
    for (uint32_t n = 0; n < i.aux[1]; ++n) values[n] = w.At<uint32_t>(i.list[2 + n])[l];
    const uint32_t bytes = 4 * i.aux[1];
    char* pointer = SharedPointer(w, i, *to.block, to.offset, bytes, static_cast<int>(bytes));
    StartBulk(w, i, l, *barrier.block, barrier.offset, bytes,
              [pointer, values, bytes] { std::memcpy(pointer, values.data(), bytes); });
  }
  return false;
}

// One box of a tensor between global and shared memory.
void MoveBox(const TensorMap& map, const int32_t* at, char* shared, uint32_t offset, bool load) {
  const uint32_t row_bytes = uint32_t{map.box[0]} * map.element_bytes;
  uint32_t counts[5] = {1, 1, 1, 1, 1};
  for (int d = 0; d < map.rank; ++d) counts[d] = map.box[d];
  uint32_t linear = offset;
  uint32_t n[5] = {};
  for (n[4] = 0; n[4] < counts[4]; ++n[4])
    for (n[3] = 0; n[3] < counts[3]; ++n[3])
      for (n[2] = 0; n[2] < counts[2]; ++n[2])
        for (n[1] = 0; n[1] < counts[1]; ++n[1], linear += row_bytes) {
          bool inside = true;
          uint64_t row = map.base;
          for (int d = 1; d < map.rank; ++d) {
            const int64_t x = int64_t{at[d]} + int64_t{n[d]} * map.steps[d];
            inside &= x >= 0 && x < int64_t{map.sizes[d]};
            row += static_cast<uint64_t>(x) * map.strides[d - 1];
          }
          for (uint32_t byte = 0; byte < row_bytes; byte += 16) {
            char* to = shared + Swizzled(linear + byte, map.swizzle);
            for (uint32_t part = 0; part < 16; part += map.element_bytes) {
              const int64_t x = int64_t{at[0]} + (byte + part) / map.element_bytes;
              const bool in = inside && x >= 0 && x < int64_t{map.sizes[0]};
              const auto from = row + static_cast<uint64_t>(x * map.element_bytes);
              // A whole piece at a time where it is inside.
              if (part == 0 && in && x + 16 / map.element_bytes <= int64_t{map.sizes[0]}) {
                if (load)
                  std::memcpy(to, reinterpret_cast<const char*>(from), 16);
                else
                  std::memcpy(reinterpret_cast<char*>(from), to, 16);
                break;
              }
              if (load) {
                if (in)
                  std::memcpy(to + part, reinterpret_cast<const char*>(from), map.element_bytes);
                else
                  std::memset(to + part, map.nan_fill ? 0xFF : 0, map.element_bytes);
              } else if (in) {
                std::memcpy(reinterpret_cast<char*>(from), to + part, map.element_bytes);
              }
            }
          }
        }
}

// The parts of the box's rows that are of the tensor: each(address, bytes).
template <class F>
void ForRows(const TensorMap& map, const int32_t* at, F each) {
  const int64_t first = std::max(int64_t{at[0]}, int64_t{0}),
                last = std::min(int64_t{at[0]} + map.box[0], int64_t{map.sizes[0]});
  uint32_t counts[5] = {1, 1, 1, 1, 1}, n[5] = {};
  for (int d = 1; d < map.rank; ++d) counts[d] = map.box[d];
  if (first >= last) return;
  for (n[4] = 0; n[4] < counts[4]; ++n[4])
    for (n[3] = 0; n[3] < counts[3]; ++n[3])
      for (n[2] = 0; n[2] < counts[2]; ++n[2])
        for (n[1] = 0; n[1] < counts[1]; ++n[1]) {
          bool inside = true;
          uint64_t row = map.base;
          for (int d = 1; d < map.rank; ++d) {
            const int64_t x = int64_t{at[d]} + int64_t{n[d]} * map.steps[d];
            inside &= x >= 0 && x < int64_t{map.sizes[d]};
            row += static_cast<uint64_t>(x) * map.strides[d - 1];
          }
          if (inside)
            each(row + static_cast<uint64_t>(first) * map.element_bytes,
                 static_cast<uint64_t>(last - first) * map.element_bytes);
        }
}

const TensorMap& MapAt(const Warp& w, const Inst& i, uint64_t address, int lane) {
  CheckHost(w, i, address, 128, 64, lane);
  const auto& map = *reinterpret_cast<const TensorMap*>(address);
  if (map.magic != kTensorMapMagic) Fault(w, i, "no tensor map there");
  if (map.rank != i.aux[1])
    Fault(w, i, "a tensor map of " + std::to_string(map.rank) + " dimensions");
  uint64_t bytes = map.element_bytes;
  uint64_t last = uint64_t{map.sizes[0]} * map.element_bytes;
  for (int d = 1; d < map.rank; ++d) last += uint64_t{map.sizes[d] - 1} * map.strides[d - 1];
  static_cast<void>(bytes);
  CheckHost(w, i, map.base, last, 16, lane);
  return map;
}

// v[0] shared, v[1] the map, v[3] the mbarrier; aux[1] dimensions, aux[2]: store; list:
// coordinates, then what is added to shared and mbarrier, then the multicast mask or ~0.
bool BulkTensor(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const uint32_t rank = i.aux[1];
    const TensorMap& map = MapAt(w, i, w.At<uint64_t>(i.v[1])[l], l);
    const Place shared = SharedPlace(w, i, i.v[0], l, static_cast<int32_t>(i.list[rank]));
    struct At {
      int32_t x[5];
    } at = {};
    uint32_t bytes = map.element_bytes;
    for (uint32_t d = 0; d < rank; ++d) {
      at.x[d] = w.At<int32_t>(i.list[d])[l];
      bytes *= map.box[d];
    }
    if (int64_t{at.x[0]} * map.element_bytes % 16 != 0)
      Fault(w, i, "a box that does not begin at 16 bytes of a row: an illegal instruction");
    if (i.aux[2] != 0) {
      ForRows(map, at.x, [&](uint64_t to, uint64_t count) { HoldStore(w, i, l, to, count); });
      MoveBox(map, at.x,
              SharedPointer(w, i, *shared.block, shared.offset, bytes, 128) - shared.offset,
              shared.offset, false);
      ++w.block->launch->effects;
      continue;
    }
    if (!(w.loads_freely >> l & 1))
      ForRows(map, at.x, [&](uint64_t from, uint64_t count) { HoldLoad(w, i, l, from, count); });
    const Place barrier = SharedPlace(w, i, i.v[3], l, static_cast<int32_t>(i.list[rank + 1]));
    const uint32_t mask_place = i.list[rank + 2];
    const uint32_t mask =
        mask_place == kAll ? 1u << shared.block->rank : w.At<uint16_t>(mask_place)[l];
    for (Block* block : w.block->cluster->blocks) {
      if ((mask >> block->rank & 1) == 0) continue;
      SharedPointer(w, i, *block, shared.offset, bytes, 128);
      Block& signalled = mask_place == kAll ? *barrier.block : *block;
      char* base = block->shared;
      const uint32_t offset = shared.offset;
      const TensorMap copy = map;
      StartBulk(w, i, l, signalled, barrier.offset, bytes,
                [copy, at, base, offset] { MoveBox(copy, at.x, base, offset, true); });
    }
  }
  return false;
}

bool Nothing(Warp&, const Inst&, uint32_t) {
  return false;
}

uint32_t Register(Lowering& l, const Operand& address, Inst& inst) {
  const Operand& base = address.parts.at(0);
  if (base.kind == Kind::kRegister)
    inst.aux[0] = static_cast<uint32_t>(l.WidthOf(base));
  else
    inst.aux[0] = 4;
  return l.Value(base, 4);
}

bool LowerMbarrier(Lowering& l, const Instruction& s, Inst& inst) {
  const auto& o = s.operands;
  const std::string& what = s.words.at(1);
  if (what == "init" || what == "inval") {
    inst.v[0] = Register(l, o.at(0), inst);
    inst.imm = o[0].offset;
    if (what == "init") inst.v[1] = l.Value(o.at(1), 4);
    inst.run = what == "init" ? InitBarrier : InvalidateBarrier;
    return true;
  }
  if (what == "try_wait" || what == "test_wait") {
    inst.v[1] = l.Predicate(o.at(0));
    inst.v[0] = Register(l, o.at(1), inst);
    inst.imm = o[1].offset;
    inst.aux[1] = s.Has("parity");
    inst.v[2] = l.Value(o.at(2), inst.aux[1] ? 4 : 8);
    inst.run = TestBarrier;
    return true;
  }
  if (what == "arrive" || what == "expect_tx" || what == "complete_tx") {
    const bool arrive = what == "arrive";
    const size_t at = o.at(0).kind == Kind::kAddress ? 0 : 1;
    inst.v[1] = at == 1 && o[0].kind == Kind::kRegister ? l.Place(o[0].reg) : kAll;
    inst.v[0] = Register(l, o.at(at), inst);
    inst.imm = o[at].offset;
    inst.v[2] = o.size() > at + 1 ? l.Value(o[at + 1], 4) : kAll;
    inst.aux[1] = arrive ? (s.Has("expect_tx") ? 1 : 0) : what == "expect_tx" ? 2 : 3;
    inst.run = ArriveBarrier;
    return true;
  }
  return false;
}

bool LowerStoreAsync(Lowering& l, const Instruction& s, Inst& inst) {
  const auto& o = s.operands;
  const std::string& type = s.words.back();
  if (s.words.at(1) != "async" || type.substr(1) != "32") return false;
  std::vector<uint32_t> list{static_cast<uint32_t>(o.at(0).offset),
                             static_cast<uint32_t>(o.at(2).offset)};
  inst.v[3] = Register(l, o[2], inst);
  inst.v[0] = Register(l, o[0], inst);
  if (o[1].kind == Kind::kVector)
    for (const Operand& one : o[1].parts) list.push_back(l.Value(one, 4));
  else
    list.push_back(l.Value(o[1], 4));
  inst.aux[1] = static_cast<uint32_t>(list.size() - 2);
  inst.list = l.List(list);
  inst.run = StoreAsync;
  return true;
}

bool LowerBulk(Lowering& l, const Instruction& s, Inst& inst) {
  const auto& o = s.operands;
  if (s.Has("prefetch") || s.Has("commit_group") || s.Has("wait_group")) {
    inst.run = Nothing;  // stores have happened; a prefetch has no effect
    return true;
  }
  if (s.words[1] == "reduce") return false;
  const bool multicast = s.Has("multicast::cluster");
  const bool to_shared = s.words[s.Has("tensor") ? 5 : 3].rfind("shared", 0) == 0;
  if (s.Has("tensor")) {
    inst.aux[1] = static_cast<uint32_t>(s.words.at(4)[0] - '0');
    const Operand& map = o.at(to_shared ? 1 : 0);
    const Operand& shared = o.at(to_shared ? 0 : 1);
    std::vector<uint32_t> list;
    if (map.parts.at(1).kind == Kind::kVector)
      for (const Operand& x : map.parts[1].parts) list.push_back(l.Value(x, 4));
    else
      list.push_back(l.Value(map.parts[1], 4));
    if (list.size() != inst.aux[1]) return false;
    inst.v[1] = l.Value(map.parts[0], 8);
    inst.v[0] = Register(l, shared, inst);
    list.push_back(static_cast<uint32_t>(shared.offset));
    if (to_shared) {
      inst.v[3] = Register(l, o.at(2), inst);
      list.push_back(static_cast<uint32_t>(o[2].offset));
      list.push_back(multicast ? l.Value(o.at(3), 2) : kAll);
    }
    inst.aux[2] = !to_shared;
    inst.list = l.List(list);
    inst.run = BulkTensor;
    return true;
  }
  std::vector<uint32_t> list{static_cast<uint32_t>(o.at(0).offset),
                             static_cast<uint32_t>(o.at(1).offset)};
  if (to_shared) {
    const bool from_shared = s.words[4].rfind("shared", 0) == 0;
    inst.v[0] = Register(l, o[0], inst);
    inst.v[1] = l.Value(o[1].parts.at(0), from_shared ? 4 : 8);
    inst.v[2] = l.Value(o.at(2), 4);
    inst.v[3] = Register(l, o.at(3), inst);
    list.push_back(static_cast<uint32_t>(o[3].offset));
    list.push_back(multicast ? l.Value(o.at(4), 2) : kAll);
    inst.run = from_shared ? BulkBetween : BulkLoad;
  } else {
    inst.v[0] = l.Value(o[0].parts.at(0), 8);
    inst.v[1] = Register(l, o[1], inst);
    inst.v[2] = l.Value(o.at(2), 4);
    inst.run = BulkStore;
  }
  inst.list = l.List(list);
  return true;
}

}  // namespace

bool LowerAsync(Lowering& l, const Instruction& s, Inst& inst) {
  if (s.words[0] == "mbarrier") return LowerMbarrier(l, s, inst);
  if (s.words[0] == "st") return LowerStoreAsync(l, s, inst);
  if (s.words[0] != "cp") return false;
  const auto& o = s.operands;
  if (s.Has("bulk")) return LowerBulk(l, s, inst);
  if (s.Has("commit_group")) {
    inst.run = CommitCopies;
    return true;
  }
  if (s.Has("wait_group") || s.Has("wait_all")) {
    inst.aux[0] = s.Has("wait_all");
    inst.imm = o.empty() ? 0 : static_cast<int64_t>(o[0].bits);
    inst.run = WaitCopies;
    return true;
  }
  if (s.Has("mbarrier")) {
    inst.v[0] = Register(l, o.at(0), inst);
    inst.imm = o[0].offset;
    inst.aux[1] = s.Has("noinc");
    inst.run = ArriveAfterCopies;
    return true;
  }
  inst.v[0] = Register(l, o.at(0), inst);
  inst.imm = o[0].offset;
  inst.v[1] = l.Value(o.at(1).parts.at(0), 8);
  inst.v[4] = static_cast<uint32_t>(o[1].offset);
  inst.aux[1] = static_cast<uint32_t>(o.at(2).bits);
  inst.v[2] = kAll;
  if (o.size() > 3) {
    if (o[3].kind == Kind::kRegister && l.kernel().registers[o[3].reg] == ptx::Width::kPredicate)
      return false;
    if (!(s.Has("L2::cache_hint") && o.size() == 4)) inst.v[2] = l.Value(o[3], 4);
  }
  inst.run = CopyAsync;
  return true;
}

}  // namespace emu
