// Makes the n-th allocation fail, counted from when somebody writes n into the first eight bytes of the file that NTH_MALLOC
// names. Preloaded; the count is shared memory, so that a process that runs can be armed from outside. The second eight bytes
// count the failures. A child process leaves it alone: the engine is not what is tried.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static _Atomic long long* state;

__attribute__((constructor)) static void Open(void) {
  const char* path = getenv("NTH_MALLOC");
  if (path == NULL) return;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* memory = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  unsetenv("NTH_MALLOC");
  unsetenv("LD_PRELOAD");
  if (memory != MAP_FAILED) state = memory;
}

static int Fails(void) {
  if (state == NULL || atomic_load_explicit(&state[0], memory_order_relaxed) <= 0) return 0;
  if (atomic_fetch_sub(&state[0], 1) != 1) return 0;
  atomic_fetch_add(&state[1], 1);
  errno = ENOMEM;
  return 1;
}

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) { return Fails() ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return Fails() ? NULL : __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return Fails() ? NULL : __libc_realloc(old, size); }
void* aligned_alloc(size_t alignment, size_t size) { return Fails() ? NULL : __libc_memalign(alignment, size); }
void* memalign(size_t alignment, size_t size) { return Fails() ? NULL : __libc_memalign(alignment, size); }
int posix_memalign(void** out, size_t alignment, size_t size) {
  void* memory = Fails() ? NULL : __libc_memalign(alignment, size);
  if (memory == NULL) return ENOMEM;
  *out = memory;
  return 0;
}
