#pragma once

// What a process does and when, for a viewer: spans of threads, and the lives of things that are
// under way on no thread of their own. Written as trace events in JSON, which Perfetto and
// chrome://tracing open.
//
// One recording at a time, of the whole process. Any thread may add to it; while none is on, that
// costs a look at an atomic. Names and keys are string literals. Memory is bounded: what comes
// after kProfileEventsMax events is counted and left out.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace baltoro {

inline constexpr size_t kProfileEventsMax = 400'000;

struct ProfileArg {
  const char* key = nullptr;  // null: none
  int64_t value = 0;
};
using ProfileArgs = std::array<ProfileArg, 4>;

// Nanoseconds of the steady clock.
int64_t ProfileNow();
// Of the recording that is on, which no other of the process has; 0: none is.
uint64_t ProfileNumber();
inline bool Profiling() {
  return ProfileNumber() != 0;
}

// kInvalidArgument where one is on. Its events begin now. One that could not be written is given
// up.
Status StartProfile();

// What StopProfile says where none is on.
inline constexpr const char* kNoProfile =
    "no profile is being recorded; POST /start_profile begins one";

// Makes the folder, and sees that files can be made in it.
Status ProbeProfileFolder(const std::string& dir);

struct ProfileSummary {
  std::string path;
  uint64_t events = 0, left_out = 0;
};
// Ends the recording and writes it to a new file in `dir`, which is made; takes as long as writing
// takes. kInvalidArgument where none is on. What is under way ends with the recording. One that
// cannot be written stays for another call.
Result<ProfileSummary> StopProfile(const std::string& dir, bool gzip);

// How the calling thread is called in recordings.
void NameProfileThread(const char* name);

// A span of the calling thread, from its construction to its end.
class ProfileSpan {
 public:
  explicit ProfileSpan(const char* name) : name_(name), begin_(Profiling() ? ProfileNow() : 0) {}
  ProfileSpan(const char* name, const ProfileArgs& args) : ProfileSpan(name) { args_ = args; }
  ProfileSpan(const ProfileSpan&) = delete;
  ProfileSpan& operator=(const ProfileSpan&) = delete;
  ~ProfileSpan();

  // It is not told: there was nothing to do.
  void Forget() { begin_ = 0; }

 private:
  const char* const name_;
  int64_t begin_;  // 0: nothing was recorded then
  ProfileArgs args_;
};

// Of a row that is no thread, named `row`: spans of one row do not overlap.
void AddProfileSpan(
    const char* row, const char* name, int64_t begin_ns, int64_t end_ns, const ProfileArgs& args);
// Something named by `id` begins or ends; what begins between the two lies within it.
void BeginProfileLife(const char* name, uint64_t id, const ProfileArgs& args = {});
void EndProfileLife(const char* name, uint64_t id, const ProfileArgs& args = {});

}  // namespace baltoro
