#include "model_location.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace baltoro {
namespace fs = std::filesystem;

namespace {

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The newest snapshot of a repository in the cache, or empty.
fs::path CachedSnapshot(const std::string& name) {
  const std::string home = Env("HF_HOME");
  const fs::path hub =
      (home.empty() ? fs::path(Env("HOME")) / ".cache/huggingface" : fs::path(home)) / "hub";
  std::string folder = "models--" + name;
  for (size_t at = folder.find('/'); at != std::string::npos; at = folder.find('/'))
    folder.replace(at, 1, "--");
  fs::path best;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(hub / folder / "snapshots", ignored)) {
    if (!fs::exists(entry.path() / "config.json", ignored)) continue;
    if (best.empty() ||
        fs::last_write_time(entry.path(), ignored) > fs::last_write_time(best, ignored))
      best = entry.path();
  }
  return best;
}

}  // namespace

Result<std::string> PocketDir(const std::string& program) {
  std::error_code ignored;
  const fs::path bin = fs::canonical(program, ignored).parent_path();
  for (const fs::path& dir : {fs::path(Env("BALTORO_POCKET")), bin / "../share/baltoro/pocket",
                              bin / "../../../pocket"}) {
    if (!dir.empty() && fs::exists(dir / "model/config.json", ignored))
      return fs::canonical(dir).string();
  }
  return Status(Code::kNotFound,
                "the pocket model is not beside the program; name a model, or set BALTORO_POCKET "
                "to the pocket folder of a checkout");
}

Result<std::string> LocateModel(const std::string& model, const std::string& program) {
  if (model.empty()) {
    BT_ASSIGN_OR_RETURN(const std::string pocket, PocketDir(program));
    return pocket + "/model";
  }
  std::error_code ignored;
  if (fs::is_directory(model, ignored)) {
    if (fs::exists(fs::path(model) / "config.json", ignored)) return model;
    return Status(Code::kNotFound,
                  model + ": this directory has no config.json, so it is no model");
  }
  if (fs::exists(model, ignored)) {
    return Status(
        Code::kNotFound,
        model + ": is a file; a model is the directory that holds config.json and weights");
  }
  const bool is_name = std::count(model.begin(), model.end(), '/') == 1 && model.front() != '/' &&
                       model.front() != '.';
  if (is_name) {
    const fs::path cached = CachedSnapshot(model);
    if (!cached.empty()) return cached.string();
    return Status(Code::kNotFound,
                  model +
                      ": no directory of this name, and not in the Hugging Face cache (HF_HOME); " +
                      "download it first, or give the path of its directory");
  }
  return Status(Code::kNotFound, model + ": no such directory");
}

}  // namespace baltoro
