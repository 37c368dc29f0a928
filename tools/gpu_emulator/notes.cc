#include "notes.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "ops/cuda/launch/order.h"

namespace emu {
namespace {

// Further apart than so many accesses, lanes are looked at one by one.
constexpr uint64_t kDense = 4 * kLanes;

enum class Of { kDevice, kOwn, kSeveral };

// Whether memory is a part of one allocation, which is `range` then, or a block's or thread's own.
Of WhoseMemory(const Warp& w, uint64_t from, uint64_t to, Range& range) {
  if (range.version == RangesVersion() && from >= range.from && to <= range.to) return Of::kDevice;
  const Launch& launch = *w.block->launch;
  const ptx::Kernel& k = *w.program->kernel;
  const auto local = reinterpret_cast<uint64_t>(w.local),
             parameters = reinterpret_cast<uint64_t>(launch.parameters);
  if (from >= parameters && to <= parameters + k.parameter_bytes) return Of::kOwn;
  if (from >= local && to <= local + k.local_bytes * kLanes) return Of::kOwn;
  for (const Block* block : w.block->cluster->blocks)
    if (block != nullptr && InShared(*block, from, to)) return Of::kOwn;
  return Allowed(from, to, range) ? Of::kDevice : Of::kSeveral;
}

std::string Bytes(int lane, const char* does, uint64_t from, uint64_t bytes) {
  return "lane " + std::to_string(lane) + does + std::to_string(bytes) + " bytes at " +
         DescribeAddress(from);
}

void Broken(const Warp& w, const Inst& i, const std::string& what) {
  const std::string text =
      "the note of \"" + w.block->launch->note->kernel + "\" is broken: " + what;
  if (!TheOptions().only_warn) Fault(w, i, text);
  Warn(w, i, text);
}

void HoldStoreOf(const Warp& w, const Inst& i, int lane, uint64_t from, uint64_t bytes) {
  const Note& note = *w.block->launch->note;
  if (!note.writes.Hold(from, from + bytes))
    Broken(w, i,
           Bytes(lane, " writes ", from, bytes) + ", outside of its writes" + note.writes.Text());
  if (!HasWaited(w, lane) && !note.early_writes.Hold(from, from + bytes))
    Broken(w, i,
           Bytes(lane, " writes ", from, bytes) +
               " before griddepcontrol.wait, outside of its early_writes" +
               note.early_writes.Text());
}

void HoldLoadOf(
    const Warp& w, const Inst& i, int lane, uint64_t from, uint64_t bytes, const Range& range) {
  if (range.written == nullptr) return;
  const Note& note = *w.block->launch->note;
  const bool fresh = range.written->Any(from, from + bytes);
  if (!HasWaited(w, lane) && (fresh || note.named.Meet(from, from + bytes)) &&
      !note.early_reads.Hold(from, from + bytes))
    Broken(w, i,
           Bytes(lane, " reads ", from, bytes) +
               (fresh ? ", which a kernel wrote," : ", which its reads name,") +
               " before griddepcontrol.wait, outside of its early_reads" + note.early_reads.Text());
  if (!fresh) return;
  if (!note.reads.Hold(from, from + bytes))
    Broken(w, i,
           Bytes(lane, " reads ", from, bytes) + ", which a kernel wrote, outside of its reads" +
               note.reads.Text());
}

bool AreDense(uint32_t m, uint64_t bytes, const uint64_t* at) {
  if (m != kAll) return false;
  for (int l = 1; l < kLanes; ++l)
    if (at[l] != at[0] + static_cast<uint64_t>(l) * bytes) return false;
  return true;
}

thread_local std::shared_ptr<const Note> next_note;

}  // namespace

std::shared_ptr<const Note> TakeNote() {
  return std::exchange(next_note, nullptr);
}

void Pieces::Add(const baltoro::cuda::Regions& regions) {
  anything_ |= regions.anything();
  for (const baltoro::cuda::Region& piece : regions.pieces()) {
    const auto from = reinterpret_cast<uint64_t>(piece.data);
    pieces_.emplace_back(from, from + static_cast<uint64_t>(piece.size));
  }
  std::sort(pieces_.begin(), pieces_.end());
  size_t count = 0;
  for (const auto& piece : pieces_) {
    if (count > 0 && piece.first <= pieces_[count - 1].second)
      pieces_[count - 1].second = std::max(pieces_[count - 1].second, piece.second);
    else
      pieces_[count++] = piece;
  }
  pieces_.resize(count);
}

bool Pieces::Find(uint64_t from, uint64_t to) const {
  for (const auto& [begin, end] : pieces_) {
    if (from < begin || to > end) continue;
    last_from_ = begin;
    last_to_ = end;
    return true;
  }
  return false;
}

bool Pieces::Meet(uint64_t from, uint64_t to) const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [=](const auto& piece) { return from < piece.second && to > piece.first; });
}

std::string Pieces::Text() const {
  if (anything_) return " (anything)";
  if (pieces_.empty()) return " (nothing)";
  std::string text;
  for (const auto& [begin, end] : pieces_)
    text += "\n    " + std::to_string(end - begin) + " bytes at " + DescribeAddress(begin);
  return text;
}

Note::Note(const baltoro::cuda::LaunchNote& from)
    : kernel(from.kernel),
      waits_first(from.next == baltoro::cuda::NextStarts::kAfterWait),
      writes(from.writes),
      early_writes(from.early_writes),
      reads(from.reads),
      early_reads(from.early_reads),
      named(from.reads) {
  early_reads.Add(from.early_writes);
  reads.Add(from.early_reads);
  reads.Add(from.early_writes);
  reads.Add(from.writes);
}

void HoldLoads(const Warp& w,
               const Inst& i,
               uint32_t m,
               uint64_t bytes,
               const uint64_t* at,
               uint64_t low,
               uint64_t high) {
  const Note& note = *w.block->launch->note;
  const bool all_waited = (m & ~w.waited) == 0;
  if (note.reads.Hold(low, high) && (all_waited || note.early_reads.Hold(low, high))) return;
  const Of of = WhoseMemory(w, low, high, i.range);
  if (of == Of::kOwn) return;
  if (of == Of::kSeveral) {
    for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
      const int l = __builtin_ctz(rest);
      HoldLoad(w, i, l, at[l], bytes);
    }
    return;
  }
  if (i.range.written == nullptr) return;
  if (high - low <= kDense * bytes && !i.range.written->Any(low, high) &&
      (all_waited || !note.named.Meet(low, high)))
    return;
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    HoldLoadOf(w, i, l, at[l], bytes, i.range);
  }
}

void HoldStores(const Warp& w,
                const Inst& i,
                uint32_t m,
                uint64_t bytes,
                const uint64_t* at,
                uint64_t low,
                uint64_t high) {
  const Launch& launch = *w.block->launch;
  const Of of = WhoseMemory(w, low, high, i.range);
  if (of == Of::kOwn) return;
  if (of == Of::kSeveral) {
    for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
      const int l = __builtin_ctz(rest);
      HoldStore(w, i, l, at[l], bytes);
    }
    return;
  }
  if (launch.note != nullptr) {
    const Note& note = *launch.note;
    const bool all_waited = (m & ~w.waited) == 0;
    if (!note.writes.Hold(low, high) || !(all_waited || note.early_writes.Hold(low, high))) {
      for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        HoldStoreOf(w, i, l, at[l], bytes);
      }
    }
  }
  if (i.range.written == nullptr) return;
  if (AreDense(m, bytes, at)) return i.range.written->Set(low, high, launch.device);
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const uint64_t from = at[__builtin_ctz(rest)];
    i.range.written->Set(from, from + bytes, launch.device);
  }
}

void HoldLoad(const Warp& w, const Inst& i, int lane, uint64_t from, uint64_t bytes) {
  if ((w.loads_freely >> lane & 1) != 0 || bytes == 0) return;
  if (WhoseMemory(w, from, from + bytes, i.range) == Of::kDevice)
    HoldLoadOf(w, i, lane, from, bytes, i.range);
}

void HoldStore(const Warp& w, const Inst& i, int lane, uint64_t from, uint64_t bytes) {
  if (!TheOptions().notes || bytes == 0) return;
  if (WhoseMemory(w, from, from + bytes, i.range) != Of::kDevice) return;
  if (w.block->launch->note != nullptr) HoldStoreOf(w, i, lane, from, bytes);
  if (i.range.written != nullptr) i.range.written->Set(from, from + bytes, w.block->launch->device);
}

void HoldStart(const Warp& w, const Inst& i, uint32_t m) {
  Launch& launch = *w.block->launch;
  launch.let_next_start = true;
  if (launch.note == nullptr || !launch.note->waits_first || (m & ~w.waited) == 0) return;
  Broken(w, i,
         "lane " + std::to_string(__builtin_ctz(m & ~w.waited)) +
             " lets the next launch start (griddepcontrol.launch_dependents) before its "
             "griddepcontrol.wait, and next is kAfterWait");
}

namespace {

void NobodyWaited(const Launch& launch, const std::string& where) {
  const std::string text = "the note of \"" + launch.note->kernel + "\" is broken: " + where +
                           " ends and none of its threads has executed griddepcontrol.wait\n"
                           "  kernel " +
                           Demangled(launch.program->kernel->name);
  if (!TheOptions().only_warn) Die(text);
  static auto* said = new std::set<const Program*>;
  if (said->insert(launch.program).second)
    std::fprintf(stderr, "EMULATOR warns: %s\n", text.c_str());
}

}  // namespace

// That each block has waited is what kAfterWait says. For others one is enough: no launch ends
// before all those ahead of it, and the next one's wait is for its end.
void HoldEnd(const Block& block) {
  Launch& launch = *block.launch;
  launch.waited |= block.waited;
  if (launch.note == nullptr || !launch.note->waits_first || block.waited) return;
  char where[100];
  std::snprintf(where, sizeof where, "block (%u, %u, %u)", block.id[0], block.id[1], block.id[2]);
  NobodyWaited(launch, where);
}

void HoldEnd(const Launch& launch) {
  if (launch.note != nullptr && !launch.waited) NobodyWaited(launch, "the launch");
}

void BeginHolding(Warp& w) {
  const Note* const note = w.block->launch->note;
  if (note == nullptr) return;
  w.waited = w.loads_freely = 0;
}

void MarkWaited(Warp& w, uint32_t lanes) {
  w.waited |= lanes;
  w.block->waited = true;
  const Note* const note = w.block->launch->note;
  if (note == nullptr || note->reads.anything()) w.loads_freely = w.waited;
}

}  // namespace emu

// Called ahead of a launch by whoever has a note for it.
extern "C" void BaltoroHoldToNote(const baltoro::cuda::LaunchNote* note) {
  if (emu::TheOptions().notes) emu::next_note = std::make_shared<const emu::Note>(*note);
}
