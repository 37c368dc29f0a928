#include "comm/nccl/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace baltoro::cuda {

// The part of NCCL's C interface that is used; stable since 2.7.
struct NcclFunctions {
  using Comm = void*;
  const char* (*error_string)(int) = nullptr;
  int (*make_id)(NcclId*) = nullptr;
  int (*join)(Comm*, int, NcclId, int) = nullptr;
  int (*destroy)(Comm) = nullptr;
  int (*abort)(Comm) = nullptr;
  int (*async_error)(Comm, int*) = nullptr;
  int (*all_reduce)(const void*, void*, size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*send)(const void*, size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*receive)(void*, size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
};

namespace {

constexpr int kSuccess = 0, kInProgress = 7, kAdd = 0;

template <typename F>
bool Find(void* library, const char* name, F* to) {
  *to = reinterpret_cast<F>(dlsym(library, name));
  return *to != nullptr;
}

// The first name that is missing, or null.
const char* FindAll(void* library, NcclFunctions* f) {
  if (!Find(library, "ncclGetErrorString", &f->error_string)) return "ncclGetErrorString";
  if (!Find(library, "ncclGetUniqueId", &f->make_id)) return "ncclGetUniqueId";
  if (!Find(library, "ncclCommInitRank", &f->join)) return "ncclCommInitRank";
  if (!Find(library, "ncclCommDestroy", &f->destroy)) return "ncclCommDestroy";
  if (!Find(library, "ncclCommAbort", &f->abort)) return "ncclCommAbort";
  if (!Find(library, "ncclCommGetAsyncError", &f->async_error)) return "ncclCommGetAsyncError";
  if (!Find(library, "ncclAllReduce", &f->all_reduce)) return "ncclAllReduce";
  if (!Find(library, "ncclSend", &f->send)) return "ncclSend";
  if (!Find(library, "ncclRecv", &f->receive)) return "ncclRecv";
  if (!Find(library, "ncclGroupStart", &f->group_start)) return "ncclGroupStart";
  if (!Find(library, "ncclGroupEnd", &f->group_end)) return "ncclGroupEnd";
  return nullptr;
}

Status Failed(const NcclFunctions& functions, int result, const char* what) {
  return Status(Code::kUnavailable,
                std::string("NCCL: ") + what + ": " + functions.error_string(result));
}

}  // namespace

Result<std::shared_ptr<const Nccl>> Nccl::Open() {
  std::vector<std::string> names;
  if (const char* named = std::getenv("BALTORO_NCCL")) {
    names = {named};
  } else {
    names = {"libnccl.so.2", "libnccl.so"};
  }
  std::string tried;
  for (const std::string& name : names) {
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      tried += (tried.empty() ? "" : "; ") + std::string(why == nullptr ? name.c_str() : why);
      continue;
    }
    std::shared_ptr<Nccl> nccl(new Nccl);
    nccl->library_ = library;
    nccl->functions_ = std::make_unique<NcclFunctions>();
    const char* missing = FindAll(library, nccl->functions_.get());
    if (missing == nullptr) return std::shared_ptr<const Nccl>(std::move(nccl));
    tried += (tried.empty() ? "" : "; ") + name + " has no " + missing;
  }
  return Status(Code::kUnavailable,
                "NCCL is needed, since ranks do not reach each other's memory, and was not found "
                "(BALTORO_NCCL names its file, LD_LIBRARY_PATH its folder): " +
                    tried);
}

// The library stays open: threads of its own may still run.
Nccl::~Nccl() = default;

Result<NcclId> Nccl::MakeId() const {
  NcclId id;
  const int result = functions_->make_id(&id);
  if (result != kSuccess) return Failed(*functions_, result, "an id for a group");
  return id;
}

struct NcclGroup::State {
  std::shared_ptr<const Nccl> nccl;
  mutable std::mutex mutex;  // of what follows
  NcclFunctions::Comm comm = nullptr;
  Status first_error;
};

Result<std::unique_ptr<NcclGroup>> NcclGroup::Join(std::shared_ptr<const Nccl> nccl,
                                                   const NcclId& id,
                                                   int rank,
                                                   int ranks) {
  auto state = std::make_unique<State>();
  state->nccl = std::move(nccl);
  const NcclFunctions& functions = state->nccl->functions();
  const int result = functions.join(&state->comm, ranks, id, rank);
  if (result != kSuccess) return Failed(functions, result, "joining a group");
  return std::unique_ptr<NcclGroup>(new NcclGroup(std::move(state), rank, ranks));
}

NcclGroup::NcclGroup(std::unique_ptr<State> state, int rank, int ranks)
    : state_(std::move(state)), rank_(rank), ranks_(ranks) {}

NcclGroup::~NcclGroup() {
  if (state_->comm == nullptr) return;
  const NcclFunctions& functions = state_->nccl->functions();
  static_cast<void>(status().ok() ? functions.destroy(state_->comm)
                                  : functions.abort(state_->comm));
}

void NcclGroup::Note(int result, const char* what) {
  if (result == kSuccess || result == kInProgress) return;
  const std::lock_guard lock(state_->mutex);
  if (state_->first_error.ok()) {
    state_->first_error = Failed(state_->nccl->functions(), result, what);
  }
}

void NcclGroup::Sum(void* x, size_t count, NcclType type, cudaStream_t stream) {
  if (!status().ok()) return;
  Note(state_->nccl->functions().all_reduce(x, x, count, static_cast<int>(type), kAdd, state_->comm,
                                            stream),
       "a sum");
}

void NcclGroup::Begin() {
  Note(state_->nccl->functions().group_start(), "sends and receives");
}

void NcclGroup::End() {
  Note(state_->nccl->functions().group_end(), "sends and receives");
}

void NcclGroup::Send(const void* from, size_t bytes, int to, cudaStream_t stream) {
  if (!status().ok()) return;
  Note(state_->nccl->functions().send(from, bytes, static_cast<int>(NcclType::kBytes), to,
                                      state_->comm, stream),
       "a send");
}

void NcclGroup::Receive(void* to, size_t bytes, int from, cudaStream_t stream) {
  if (!status().ok()) return;
  Note(state_->nccl->functions().receive(to, bytes, static_cast<int>(NcclType::kBytes), from,
                                         state_->comm, stream),
       "a receive");
}

Status NcclGroup::status() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->first_error.ok() || state_->comm == nullptr) return state_->first_error;
  const NcclFunctions& functions = state_->nccl->functions();
  int error = kSuccess;
  const int result = functions.async_error(state_->comm, &error);
  const int worst = result != kSuccess ? result : error;
  if (worst != kSuccess && worst != kInProgress) {
    state_->first_error = Failed(functions, worst, "a peer");
  }
  return state_->first_error;
}

void NcclGroup::Abort() {
  const std::lock_guard lock(state_->mutex);
  if (state_->first_error.ok()) {
    state_->first_error = Status(Code::kUnavailable, "ranks: aborted");
  }
  if (state_->comm == nullptr) return;
  static_cast<void>(state_->nccl->functions().abort(state_->comm));
  state_->comm = nullptr;
}

}  // namespace baltoro::cuda
