// What the static libstdc++ and libgcc of Debian 12 take from glibc and glibc 2.31 does not have: linked into a program that
// runs on both (cmake/portable.cmake), where it also stands in the way of the newer glibc's own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

// 2.32. Never true: shared pointers always count atomically.
char __libc_single_threaded = 0;

// 2.36, for std::random_device.
uint32_t arc4random(void) {
  uint32_t bits;
  if (getentropy(&bits, sizeof bits) != 0) abort();
  return bits;
}

struct search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int visit(struct dl_phdr_info* object, size_t size, void* given) {
  (void)size;
  struct search* search = given;
  void* eh_frame = NULL;
  int here = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &object->dlpi_phdr[i];
    const uintptr_t start = object->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_LOAD && search->address >= start && search->address - start < segment->p_memsz) here = 1;
    if (segment->p_type == PT_GNU_EH_FRAME) eh_frame = (void*)start;
  }
  if (!here || eh_frame == NULL) return 0;
  search->found->dlfo_eh_frame = eh_frame;
  return 1;
}

// 2.35. The unwinder looks up the code that an exception passes through; of the answer it reads dlfo_eh_frame alone.
int _dl_find_object(void* address, struct dl_find_object* found) {
  struct search search = {(uintptr_t)address, found};
  return dl_iterate_phdr(visit, &search) == 1 ? 0 : -1;
}
