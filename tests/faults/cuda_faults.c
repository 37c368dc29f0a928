// Stands between the CUDA runtime, which is linked into the module, and the driver: the runtime asks the driver for its functions
// by cuGetProcAddress, which this library answers for some of them. Preloaded; CUDA_FAULTS names a file of four numbers of eight
// bytes, shared with whoever tries:
//   0: the n-th call that makes something (memory, host memory, stream, event, graph) fails; counts down, 0 is never
//   1: the process whose launches and waits fail with an illegal address from now on; 0 is none
//   2: calls that have failed
//   3: calls that make something, so far
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kOutOfMemory = 2, kIllegalAddress = 700 };

static _Atomic long long* State(void) {
  static _Atomic long long* state = NULL;
  if (state != NULL) return state;
  const char* path = getenv("CUDA_FAULTS");
  const int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return NULL;
  void* memory = mmap(NULL, 32, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory != MAP_FAILED) state = memory;
  return state;
}

static int MakeFails(void) {
  _Atomic long long* state = State();
  if (state == NULL) return 0;
  atomic_fetch_add(&state[3], 1);
  if (atomic_load(&state[1]) == getpid()) return kIllegalAddress;
  if (atomic_load(&state[0]) <= 0 || atomic_fetch_sub(&state[0], 1) != 1) return 0;
  atomic_fetch_add(&state[2], 1);
  return kOutOfMemory;
}

static int RunFails(void) {
  _Atomic long long* state = State();
  if (state == NULL || atomic_load_explicit(&state[1], memory_order_relaxed) != getpid()) return 0;
  atomic_fetch_add(&state[2], 1);
  return kIllegalAddress;
}

// Twelve words are as many as any of these functions takes; more than it takes does no harm.
#define WORDS long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l
typedef int (*Function)(WORDS);
struct Entry {
  const char* name;
  Function own;
  Function real;
};

#define MADE(X)                                                                                                   \
  X(0, "cuMemAlloc") X(1, "cuMemAllocHost") X(2, "cuMemHostAlloc") X(3, "cuStreamCreate")                        \
  X(4, "cuStreamCreateWithPriority") X(5, "cuEventCreate") X(6, "cuGraphInstantiateWithFlags")                    \
  X(7, "cuMemAllocFromPoolAsync") X(8, "cuMemAllocAsync") X(9, "cuGraphInstantiate") X(10, "cuMemCreate") X(11, "cuMemAllocManaged")
#define RUN(X)                                                                                                    \
  X(12, "cuLaunchKernel") X(13, "cuLaunchKernelEx") X(14, "cuGraphLaunch") X(15, "cuStreamSynchronize")           \
  X(16, "cuEventSynchronize") X(17, "cuEventQuery") X(18, "cuMemcpyHtoDAsync") X(19, "cuMemcpyDtoHAsync")         \
  X(20, "cuMemcpyAsync") X(21, "cuCtxSynchronize") X(22, "cuStreamQuery")

static struct Entry entries[];
#define OWN_MADE(n, s) \
  static int Own##n(WORDS) { const int fails = MakeFails(); return fails ? fails : entries[n].real(a, b, c, d, e, f, g, h, i, j, k, l); }
#define OWN_RUN(n, s) \
  static int Own##n(WORDS) { const int fails = RunFails(); return fails ? fails : entries[n].real(a, b, c, d, e, f, g, h, i, j, k, l); }
MADE(OWN_MADE)
RUN(OWN_RUN)
#define ENTRY(n, s) {s, Own##n, NULL},
static struct Entry entries[] = {MADE(ENTRY) RUN(ENTRY)};

static void Replace(const char* symbol, void** out) {
  for (size_t n = 0; n < sizeof(entries) / sizeof(entries[0]); ++n) {
    if (strcmp(symbol, entries[n].name) != 0 || *out == NULL || *out == (void*)entries[n].own) continue;
    entries[n].real = (Function)*out;
    *out = (void*)entries[n].own;
  }
}

static int (*real_address)(const char*, void**, int, unsigned long long, void*);
static int OwnAddress(const char* symbol, void** out, int version, unsigned long long flags, void* status) {
  const int answer = real_address(symbol, out, version, flags, status);
  if (answer != 0 || out == NULL) return answer;
  if (strcmp(symbol, "cuGetProcAddress") == 0) {
    if (version >= 12000) *out = (void*)OwnAddress;
    return answer;
  }
  Replace(symbol, out);
  return answer;
}

void* dlsym(void* handle, const char* name) {
  static void* (*real)(void*, const char*) = NULL;
  if (real == NULL) real = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (real == NULL) real = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  void* found = real(handle, name);
  if (found == NULL || getenv("CUDA_FAULTS") == NULL) return found;
  if (strcmp(name, "cuGetProcAddress_v2") == 0) {
    real_address = (int (*)(const char*, void**, int, unsigned long long, void*))found;
    return (void*)OwnAddress;
  }
  return found;
}
