#pragma once

// NCCL, opened at run time: the file that BALTORO_NCCL names, else libnccl.so.2 where the loader
// looks (LD_LIBRARY_PATH).

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace baltoro::cuda {

// What the first rank of a group makes and the others must have in order to join it.
struct NcclId {
  std::array<char, 128> bytes = {};
};

// Values as in NCCL's interface.
enum class NcclType : int { kBytes = 1, kF32 = 7, kBf16 = 9 };

struct NcclFunctions;

class Nccl {
 public:
  // kUnavailable: what was tried.
  static Result<std::shared_ptr<const Nccl>> Open();
  ~Nccl();

  Result<NcclId> MakeId() const;
  const NcclFunctions& functions() const { return *functions_; }

 private:
  Nccl() = default;
  std::unique_ptr<NcclFunctions> functions_;
  void* library_ = nullptr;
};

// A rank of a group. Operations are queued on the stream and can be recorded in a graph; one thread
// at a time, but for Abort. The first error stays.
class NcclGroup {
 public:
  // Blocks until all ranks of the group are there.
  static Result<std::unique_ptr<NcclGroup>> Join(std::shared_ptr<const Nccl> nccl,
                                                 const NcclId& id,
                                                 int rank,
                                                 int ranks);
  ~NcclGroup();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // In place; the order of additions is NCCL's, the same bits on all ranks.
  void Sum(void* x, size_t count, NcclType type, cudaStream_t stream);
  // Sends and receives between these two run as one.
  void Begin();
  void End();
  void Send(const void* from, size_t bytes, int to, cudaStream_t stream);
  void Receive(void* to, size_t bytes, int from, cudaStream_t stream);

  Status status() const;
  // Ends what waits. Any thread.
  void Abort();

 private:
  struct State;
  NcclGroup(std::unique_ptr<State> state, int rank, int ranks);
  Status UseOnce();
  void Note(int result, const char* what);

  std::unique_ptr<State> state_;
  int rank_, ranks_;
};

}  // namespace baltoro::cuda
