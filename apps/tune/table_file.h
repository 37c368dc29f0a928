#pragma once

// Where `baltoro tune` writes its table. One thread.

#include <string>

#include "base/status.h"

namespace baltoro {

class TableFile {
 public:
  // `file`, of --tuned-config, or where it is empty `name` in `folder`, of --save-dir, which is
  // made where it is missing. kInvalidArgument where a file cannot be written there, so that
  // nothing is measured in vain; one that is there already stays as it is.
  static Result<TableFile> Try(const std::string& folder,
                               const std::string& file,
                               const std::string& name);

  // The whole file at once: nobody sees half of it.
  Status Write(const std::string& text) const;
  const std::string& path() const { return path_; }

 private:
  TableFile(std::string path, std::string flag);
  Status WritePart(const std::string& text) const;

  std::string path_, part_;
  std::string flag_;  // with its value, which begins errors
};

}  // namespace baltoro
