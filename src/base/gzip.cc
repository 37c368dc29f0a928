#include "base/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <new>

namespace baltoro {
namespace {

constexpr size_t kPiece = 65536;
constexpr int kGzipAlone = 15 + 16;  // the largest window; no zlib or raw streams

// zlib's stream, which has memory of its own.
class Inflater {
 public:
  explicit Inflater(std::string_view bytes) {
    // zlib's interface is older than const; it writes to what it fills alone.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    made_ = inflateInit2(&stream_, kGzipAlone) == Z_OK;
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (made_) inflateEnd(&stream_);
  }

  bool made() const { return made_; }
  size_t left() const { return stream_.avail_in; }
  bool NextMember() { return inflateReset(&stream_) == Z_OK; }

  // Fills `piece` as far as the archive goes; `got` tells how far.
  int Next(std::array<char, kPiece>& piece, size_t& got) {
    stream_.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream_.avail_out = kPiece;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    got = kPiece - stream_.avail_out;
    return code;
  }

 private:
  z_stream stream_{};
  bool made_ = false;
};

Status NotEnoughMemory() {
  return Status(Code::kResourceExhausted, "not enough memory to decompress it");
}

Status Broken(int code) {
  if (code == Z_MEM_ERROR) return NotEnoughMemory();
  return InvalidArgument(code == Z_BUF_ERROR ? "is a gzip archive whose end is missing"
                                             : "is a broken gzip archive");
}

}  // namespace

bool IsGzip(std::string_view bytes) {
  return bytes.starts_with("\x1f\x8b");
}

Result<std::string> Gunzip(std::string_view bytes, uint64_t bytes_max) {
  // zlib counts what it is given in 32 bits.
  if (bytes.size() > UINT32_MAX) return InvalidArgument("is a gzip archive of more than 4 GiB");
  try {
    std::string out;
    Inflater inflater(bytes);
    if (!inflater.made()) return NotEnoughMemory();
    std::array<char, kPiece> piece;
    while (true) {
      size_t got = 0;
      const int code = inflater.Next(piece, got);
      if (code != Z_OK && code != Z_STREAM_END) return Broken(code);
      if (got > bytes_max - out.size()) {
        return InvalidArgument("is a gzip archive of more than " + std::to_string(bytes_max) +
                               " bytes, which is the limit");
      }
      out.append(piece.data(), got);
      if (code != Z_STREAM_END) continue;
      if (inflater.left() == 0) return out;
      if (!inflater.NextMember()) return Broken(Z_DATA_ERROR);
    }
  } catch (const std::bad_alloc&) {
    return NotEnoughMemory();
  }
}

Result<std::string> ReadPlainOrGzip(const std::string& path,
                                    uint64_t bytes_max,
                                    std::string_view flag) {
  BT_ASSIGN_OR_RETURN(std::string bytes, ReadFile(path, bytes_max, flag));
  if (!IsGzip(bytes)) return bytes;
  Result<std::string> text = Gunzip(bytes, bytes_max);
  if (text.ok()) return text;
  const std::string what = flag.empty() ? path : std::string(flag) + " " + path;
  return Status(text.status().code(), what + ": " + text.status().message());
}

}  // namespace baltoro
