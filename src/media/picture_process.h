#pragma once

// Pictures decoded in processes of their own, which can do nothing else: what a hostile file makes
// of a decoder stays in there. A process that dies, or takes too long, costs the one picture that
// it had; the next picture finds a new one.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/child_process.h"
#include "media/cut_patches.h"
#include "media/decode_picture.h"

namespace baltoro {

class PictureProcess {
 public:
  struct Options {
    // A program and its arguments that call RunPictureWorker with descriptor 3.
    std::vector<std::string> command;
    int processes = 1;        // pictures at once
    double seconds_max = 20;  // for one picture
  };

  explicit PictureProcess(Options options);
  ~PictureProcess();
  PictureProcess(const PictureProcess&) = delete;
  PictureProcess& operator=(const PictureProcess&) = delete;

  // Starts one of the processes before there is a picture, so that the log says at once what is
  // wrong with them: kUnavailable where it does not start, and a line where the kernel does not let
  // it give up what it does not need. Any thread.
  Status StartOne();

  // DecodePicture and CutPatches, with their errors; kInvalidArgument too where the process dies
  // of the picture or is ended for its time, kUnavailable where none starts. Waits until one is
  // free. Processes are started by the pictures that need them. Any thread.
  Result<PicturePatches> Prepare(std::string_view file,
                                 const PictureRules& rules,
                                 const PictureLimits& limits);

 private:
  class Place;

  size_t TakeFree();
  void GiveBack(size_t which);
  Status Start(ChildProcess& child);
  // Says in the log how the process ended.
  void End(ChildProcess& child, const char* why) const;

  const Options options_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<size_t> free_;  // guarded by mutex_
  std::atomic<bool> told_unconfined_{false};
  // Each belongs to whoever has taken it; fd is -1 while none runs.
  std::vector<ChildProcess> children_;
};

}  // namespace baltoro
