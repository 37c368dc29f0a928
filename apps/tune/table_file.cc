#include "tune/table_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace baltoro {

namespace fs = std::filesystem;

TableFile::TableFile(std::string path, std::string flag)
    : path_(std::move(path)), part_(path_ + ".part"), flag_(std::move(flag)) {}

Result<TableFile> TableFile::Try(const std::string& folder,
                                 const std::string& file,
                                 const std::string& name) {
  std::error_code error;
  if (file.empty()) {
    fs::create_directories(folder, error);
    if (error) return InvalidArgument("--save-dir " + folder + ": " + error.message());
  }
  TableFile out(file.empty() ? (fs::path(folder) / name).string() : file,
                file.empty() ? "--save-dir " + folder : "--tuned-config " + file);
  if (fs::is_directory(out.path_, error)) {
    return InvalidArgument(out.flag_ + ": " + out.path_ + " is a folder");
  }
  BT_RETURN_IF_ERROR(out.WritePart(""));
  fs::remove(out.part_, error);
  return out;
}

Status TableFile::Write(const std::string& text) const {
  BT_RETURN_IF_ERROR(WritePart(text));
  std::error_code error;
  fs::rename(part_, path_, error);
  if (!error) return {};
  const Status failed = InvalidArgument(flag_ + ": cannot write " + path_ + ": " + error.message());
  fs::remove(part_, error);
  return failed;
}

Status TableFile::WritePart(const std::string& text) const {
  errno = 0;
  std::ofstream file(part_);
  file << text;
  file.close();
  if (file) return {};
  const std::string why = errno != 0 ? ": " + std::generic_category().message(errno) : "";
  std::error_code ignored;
  fs::remove(part_, ignored);
  return InvalidArgument(flag_ + ": cannot write " + part_ + why);
}

}  // namespace baltoro
