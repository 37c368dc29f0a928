#include "ops/cuda/launch/order.h"

#include <cstdlib>
#include <string>

#include "base/check.h"

namespace baltoro::cuda {
namespace {

std::string Early(const LaunchNote& note, const char* does, const LaunchNote& running) {
  return std::string(note.kernel) + " " + does + " before its wait what " + running.kernel +
         ", ahead of it, may still be using";
}

}  // namespace

void Regions::Add(const Region& piece) {
  if (anything_ || piece.size == 0) return;
  BT_CHECK(count_ < kMax);
  pieces_[static_cast<size_t>(count_++)] = piece;
}

void Regions::Add(const Regions& pieces) {
  anything_ = anything_ || pieces.anything_;
  for (int i = 0; i < pieces.count_; ++i) Add(pieces.pieces_[static_cast<size_t>(i)]);
}

bool Regions::Meets(const Region& piece) const {
  if (piece.size == 0) return false;
  if (anything_) return true;
  for (int i = 0; i < count_; ++i) {
    if (pieces_[static_cast<size_t>(i)].Meets(piece)) return true;
  }
  return false;
}

bool Regions::Meets(const Regions& other) const {
  if (other.anything_) return !empty();
  for (int i = 0; i < other.count_; ++i) {
    if (Meets(other.pieces_[static_cast<size_t>(i)])) return true;
  }
  return false;
}

bool LaunchOrder::IsComplete(const Regions& regions) const {
  for (int i = 0; i < running_; ++i) {
    if (notes_[static_cast<size_t>(i)].writes.Meets(regions)) return false;
  }
  return true;
}

bool LaunchOrder::IsLeftAlone(const Regions& regions) const {
  for (int i = 0; i < running_; ++i) {
    const LaunchNote& running = notes_[static_cast<size_t>(i)];
    if (running.reads.Meets(regions) || running.early_reads.Meets(regions)) return false;
  }
  return IsComplete(regions);
}

void LaunchOrder::Add(const LaunchNote& note) {
  for (int i = 0; i < running_; ++i) {
    const LaunchNote& running = notes_[static_cast<size_t>(i)];
    if (running.writes.Meets(note.early_reads)) too_early(Early(note, "reads", running));
    if (running.writes.Meets(note.early_writes) || running.reads.Meets(note.early_writes) ||
        running.early_reads.Meets(note.early_writes)) {
      too_early(Early(note, "writes", running));
    }
  }
  if (note.next == NextStarts::kAfterWait) running_ = 0;
  if (running_ == kRunningMax) {
    // More than anybody needs: the oldest and the newest become one that may touch anything.
    notes_[0] = "launches that do not wait for each other";
    --running_;
  }
  notes_[static_cast<size_t>(running_++)] = note;
}

void LaunchOrder::AddPlain(const char* name) {
  LaunchNote note = name;
  note.next = NextStarts::kAfterWait;
  Add(note);
}

void LaunchOrder::EndsProcess(const std::string& what) {
  WriteLastLine(("CUDA: " + what + "\n").c_str());
  std::abort();
}

void LaunchOrder::Forget() {
  notes_[0] = "an operation queued before";
  running_ = 1;
}

}  // namespace baltoro::cuda
