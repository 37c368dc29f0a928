#include "media/picture_worker.h"

#include <errno.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "media/cut_patches.h"
#include "media/picture_sandbox.h"
#include "media/picture_wire.h"

namespace baltoro {
namespace {

constexpr int kGone = 0;    // the other side has closed: this is how a worker ends
constexpr int kBroken = 1;  // it has not kept to the form

void ReadAll(int fd, void* out, size_t size) {
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = read(fd, at, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) _exit(kGone);
    at += got;
    size -= static_cast<size_t>(got);
  }
}

void WriteAll(int fd, const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t put = write(fd, at, size);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) _exit(kGone);
    at += put;
    size -= static_cast<size_t>(put);
  }
}

void WriteStatus(int fd, const Status& status) {
  const std::string sentence = status.message().substr(0, kSentenceBytesMax);
  const PictureAnswer answer{.code = status.code(),
                             .sentence_bytes = static_cast<uint32_t>(sentence.size())};
  WriteAll(fd, &answer, sizeof(answer));
  WriteAll(fd, sentence.data(), sentence.size());
}

Result<PicturePatches> Prepare(std::string_view file, const PictureJob& job) {
  BT_ASSIGN_OR_RETURN(Rgb picture, DecodePicture(file, job.limits));
  return CutPatches(std::move(picture), job.rules);
}

}  // namespace

void RunPictureWorker(int fd, uint64_t memory_max) {
  // Libraries read files and look at the processor when they are first used: now they may.
  using namespace std::string_view_literals;
  constexpr auto kSmallest = "GIF89a\1\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"sv;
  const Result<PicturePatches> first = Prepare(kSmallest, {});
  WriteStatus(fd, first.ok() ? EnterPictureSandbox(memory_max) : first.status());

  for (;;) {
    PictureJob job;
    ReadAll(fd, &job, sizeof(job));
    if (job.bytes > job.limits.bytes_max) _exit(kBroken);
    std::string file(job.bytes, '\0');
    ReadAll(fd, file.data(), file.size());
    const Result<PicturePatches> made = Prepare(file, job);
    if (!made.ok()) {
      WriteStatus(fd, made.status());
      continue;
    }
    const PicturePatches& patches = made.value();
    const PictureAnswer answer{.grid_height = patches.grid_height,
                               .grid_width = patches.grid_width,
                               .pixels = patches.pixels,
                               .patch_bytes = patches.size};
    WriteAll(fd, &answer, sizeof(answer));
    WriteAll(fd, patches.bytes.bytes.get(), patches.size);
  }
}

}  // namespace baltoro
