#include "flags/hub_places.h"

#include <initializer_list>

namespace baltoro {
namespace {

std::string Text(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = environment.find(name);
    if (found != environment.end() && !found->second.empty()) return found->second;
  }
  return "";
}

// As the hubs' Python clients read their switches.
bool IsOn(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text == "1" || text == "on" || text == "yes" || text == "true";
}

std::string WithoutSlash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

// "~/x" for shells that did not expand it, as in NAME="~/x".
std::string Expanded(const std::string& path, const std::string& home) {
  return path == "~" || path.starts_with("~/") ? home + path.substr(1) : path;
}

std::string CacheFolder(const char* kind, const std::string& repo) {
  std::string folder = kind + repo;
  for (size_t at = folder.find('/'); at != folder.npos; at = folder.find('/')) {
    folder.replace(at, 1, "--");
  }
  return folder;
}

}  // namespace

HubPlaces HubPlacesOf(const Environment& environment) {
  HubPlaces out;
  const std::string home = Text(environment, {"HOME"});
  std::string caches = Text(environment, {"XDG_CACHE_HOME"});
  if (caches.empty()) caches = home + "/.cache";
  std::string hf_home = Text(environment, {"HF_HOME"});
  if (hf_home.empty()) hf_home = caches + "/huggingface";
  out.hf_cache = Text(environment, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  if (out.hf_cache.empty()) out.hf_cache = hf_home + "/hub";
  out.hf_token_file = Text(environment, {"HF_TOKEN_PATH"});
  if (out.hf_token_file.empty()) out.hf_token_file = hf_home + "/token";
  out.hf_token = Text(environment, {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  out.hf_endpoint = Text(environment, {"HF_ENDPOINT"});
  if (out.hf_endpoint.empty()) out.hf_endpoint = "https://huggingface.co";
  out.offline = IsOn(Text(environment, {"HF_HUB_OFFLINE"}));

  out.modelscope_cache = Text(environment, {"MODELSCOPE_CACHE"});
  if (out.modelscope_cache.empty()) out.modelscope_cache = home + "/.cache/modelscope/hub";
  out.modelscope_cache += "/models";
  out.modelscope_endpoint = Text(environment, {"MODELSCOPE_DOMAIN"});
  if (out.modelscope_endpoint.empty()) out.modelscope_endpoint = "www.modelscope.cn";
  if (out.modelscope_endpoint.find("://") == std::string::npos) {
    out.modelscope_endpoint = "https://" + out.modelscope_endpoint;
  }
  out.modelscope_token = Text(environment, {"MODELSCOPE_API_TOKEN"});
  out.ca_file = CaFileOf(environment);
  out.use_modelscope = IsOn(Text(environment, {"VLLM_USE_MODELSCOPE"}));

  for (std::string* path : {&out.hf_cache, &out.hf_token_file, &out.modelscope_cache}) {
    *path = Expanded(*path, home);
  }
  out.hf_endpoint = WithoutSlash(out.hf_endpoint);
  out.modelscope_endpoint = WithoutSlash(out.modelscope_endpoint);
  return out;
}

std::string CaFileOf(const Environment& environment) {
  return Text(environment, {"CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"});
}

std::string CacheFolderOf(const std::string& repo) {
  return CacheFolder("models--", repo);
}

std::string DatasetCacheFolderOf(const std::string& repo) {
  return CacheFolder("datasets--", repo);
}

std::string ModelScopeFolderOf(const std::string& repo) {
  std::string folder = repo;
  const size_t name = folder.find('/') + 1;
  for (size_t at = folder.find('.', name); at != folder.npos; at = folder.find('.', at)) {
    folder.replace(at, 1, "___");
  }
  return folder;
}

}  // namespace baltoro
