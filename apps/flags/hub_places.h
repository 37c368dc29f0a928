#pragma once

// The hubs of models, and the places that their own tools use on a machine.

#include <string>

#include "flags/ending.h"

namespace baltoro {

// Where downloads come from and go, as the environment says; HubPlacesOf fills all of it.
struct HubPlaces {
  std::string hf_endpoint;    // no '/' at the end
  std::string hf_cache;       // the folder that holds "models--org--name"
  std::string hf_token_file;  // where `hf login` leaves a token
  std::string hf_token;       // empty: not in the environment
  std::string modelscope_endpoint;
  std::string modelscope_cache;  // the folder that holds "org/name"
  std::string modelscope_token;
  std::string ca_file;          // of certificates; empty: the system's
  bool use_modelscope = false;  // VLLM_USE_MODELSCOPE
  bool offline = false;         // HF_HUB_OFFLINE
};
HubPlaces HubPlacesOf(const Environment& environment);

// The file of certificates that the environment names, under curl's name, OpenSSL's or that of
// Python's requests. Empty: none, so the system's are meant.
std::string CaFileOf(const Environment& environment);

// The folder of "org/name" in hf_cache, "models--org--name", and in modelscope_cache, which has
// "___" for dots in the name.
std::string CacheFolderOf(const std::string& repo);
// The same of a data set: "datasets--org--name".
std::string DatasetCacheFolderOf(const std::string& repo);
std::string ModelScopeFolderOf(const std::string& repo);

}  // namespace baltoro
