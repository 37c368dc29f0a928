#include "media/picture_worker.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <string_view>

#include "base/check.h"
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
  try {
    BT_ASSIGN_OR_RETURN(Rgb picture, DecodePicture(file, job.limits));
    return CutPatches(std::move(picture), job.rules);
  } catch (const std::bad_alloc&) {  // the picture is not to blame
    return NoMemoryForPicture();
  }
}

void Skip(int fd, uint64_t bytes) {
  std::array<char, 4096> some;
  while (bytes > 0) {
    const size_t size = std::min<uint64_t>(bytes, some.size());
    ReadAll(fd, some.data(), size);
    bytes -= size;
  }
}

}  // namespace

void RunPictureWorker(int fd, uint64_t memory_max) {
  // Libraries read files and look at the processor when they are first used: now they may.
  using namespace std::string_view_literals;
  constexpr auto kSmallest = "GIF89a\1\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"sv;
  const Result<PicturePatches> first = Prepare(kSmallest, {});
  if (!first.ok()) {
    // Nothing is decoded without the sandbox, nor by what cannot decode this.
    WriteLastLine(("the smallest picture cannot be decoded: " + first.status().message()).c_str());
    _exit(kBroken);
  }
  WriteStatus(fd, EnterPictureSandbox(memory_max));

  for (;;) {
    PictureJob job;
    ReadAll(fd, &job, sizeof(job));
    if (job.bytes > job.limits.bytes_max) _exit(kBroken);
    Result<PixelBuffer> file = PixelBuffer::Make(job.bytes);
    if (!file.ok()) {
      Skip(fd, job.bytes);
      WriteStatus(fd, file.status());
      continue;
    }
    auto* const bytes = reinterpret_cast<char*>(file.value().bytes.get());
    ReadAll(fd, bytes, job.bytes);
    const Result<PicturePatches> made = Prepare({bytes, job.bytes}, job);
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
