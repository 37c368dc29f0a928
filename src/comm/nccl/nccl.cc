#include "comm/nccl/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/cuda_status.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/stream.h"

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

// NCCL connects ranks and asks about memory when it is first used, also while the stream is being
// captured, where the driver refuses that from a thread that has not said it knows.
class RelaxedCapture {
 public:
  RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

Status Failed(const NcclFunctions& functions, int result, const char* what) {
  return Status(Code::kUnavailable,
                std::string("NCCL: ") + what + ": " + functions.error_string(result));
}

}  // namespace

Result<std::shared_ptr<const Nccl>> Nccl::Open() {
  // Connections of all kinds are made when ranks join, and buffers in graphs are not registered
  // with peers, which would outlive the graph.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
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
  std::unique_ptr<NcclGroup> group(new NcclGroup(std::move(state), rank, ranks));
  BT_RETURN_IF_ERROR(group->UseOnce());
  return group;
}

// So that all connections are made before anything is recorded.
Status NcclGroup::UseOnce() {
  BT_ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  const auto bytes = size_t{16} * static_cast<size_t>(ranks_);
  BT_ASSIGN_OR_RETURN(const DeviceBuffer buffer,
                      DeviceBuffer::Create(2 * bytes, "a first message"));
  BT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(buffer.data(), 0, 2 * bytes, stream.get()));
  Sum(buffer.data(), 4, NcclType::kF32, stream.get());
  Sum(buffer.data(), 4, NcclType::kBf16, stream.get());
  Begin();
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    Send(buffer.as<char>(), 16, other, stream.get());
    Receive(buffer.as<char>() + bytes + 16 * static_cast<size_t>(other), 16, other, stream.get());
  }
  End();
  BT_RETURN_IF_ERROR(status());
  return stream.Synchronize();
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
  const RelaxedCapture relaxed;
  if (!status().ok()) return;
  Note(state_->nccl->functions().all_reduce(x, x, count, static_cast<int>(type), kAdd, state_->comm,
                                            stream),
       "a sum");
}

void NcclGroup::Begin() {
  Note(state_->nccl->functions().group_start(), "sends and receives");
}

void NcclGroup::End() {
  const RelaxedCapture relaxed;
  Note(state_->nccl->functions().group_end(), "sends and receives");
}

void NcclGroup::Send(const void* from, size_t bytes, int to, cudaStream_t stream) {
  const RelaxedCapture relaxed;
  if (!status().ok()) return;
  Note(state_->nccl->functions().send(from, bytes, static_cast<int>(NcclType::kBytes), to,
                                      state_->comm, stream),
       "a send");
}

void NcclGroup::Receive(void* to, size_t bytes, int from, cudaStream_t stream) {
  const RelaxedCapture relaxed;
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
