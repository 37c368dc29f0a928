#include "model_location.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "model_map.h"
#include "plan/model_description.h"

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

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// "owner/name" of the model of the family that this is the name of, or that a folder is named
// after; else empty.
std::string KnownModel(std::string name) {
  while (name.ends_with('/')) name.pop_back();
  name = Lower(name.substr(name.rfind('/') + 1));
  for (const ModelDescription& known : KnownModels()) {
    if (Lower(known.name) == name) return known.owner + "/" + known.name;
  }
  return "";
}

// What to do about a model that is not here; empty for a name that is none of a hub.
std::string DownloadHint(const std::string& model, bool is_hub_name) {
  const std::string known = KnownModel(model);
  if (known.empty() && !is_hub_name) return "";
  const std::string& hub = is_hub_name ? model : known;
  return fmt::format("; download it (hf download {} --local-dir {}) and give that directory{}", hub,
                     hub.substr(hub.rfind('/') + 1),
                     known.empty() ? "" : "; `baltoro plan` needs no more than the name");
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

namespace {

// A directory, a name in the cache, or, when empty, the pocket model.
Result<std::string> LocateNamed(const std::string& model, const std::string& program) {
  if (model.empty()) {
    BT_ASSIGN_OR_RETURN(const std::string pocket, PocketDir(program));
    return pocket + "/model";
  }
  std::error_code ignored;
  if (fs::is_directory(model, ignored)) {
    if (FileExists(fs::path(model) / "config.json")) return model;
    return Status(Code::kNotFound,
                  model +
                      ": this directory has no config.json, so it is no model; give the one "
                      "that has, with the weights beside it" +
                      DownloadHint(model, /*is_hub_name=*/false));
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
                      ": no directory of this name, and not in the Hugging Face cache (HF_HOME)" +
                      DownloadHint(model, /*is_hub_name=*/true));
  }
  return Status(Code::kNotFound,
                model + ": no such directory" + DownloadHint(model, /*is_hub_name=*/false));
}

}  // namespace

Result<std::string> LocateModel(const std::string& model, const std::string& program) {
  BT_ASSIGN_OR_RETURN(const ModelMap map, ReadModelMap(Env(kModelMapVariable)));
  const std::string* const mapped = FindMapped(map, model);
  if (mapped == nullptr) return LocateNamed(model, program);
  Result<std::string> dir = LocateNamed(*mapped == kPocketName ? "" : *mapped, program);
  if (!dir.ok()) {
    return Status(dir.status().code(), fmt::format("{}; {} leads {} to it", dir.status().message(),
                                                   kModelMapVariable, model));
  }
  BT_LOG(Warning, "{} is {} here ({})", model, dir.value(), kModelMapVariable);
  return dir;
}

}  // namespace baltoro
