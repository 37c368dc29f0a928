// As libnvidia-ml.so.1 and libcuda.so.1: two cards joined by NVLink, of which FAKE_* plant faults. For test_doctor.py.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text == NULL ? otherwise : atoi(text);
}

int nvmlInit_v2(void) { return number("FAKE_INIT", 0); }
int nvmlShutdown(void) { return 0; }
const char* nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  const char* version = getenv("FAKE_DRIVER");
  snprintf(text, size, "%s", version == NULL ? "580.65.06" : version);
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) { *count = (unsigned)number("FAKE_CARDS", 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { *device = (void*)(size_t)(index + 1); return 0; }
int nvmlDeviceGetName(void* device, char* text, unsigned size) { (void)device; snprintf(text, size, "NVIDIA H200"); return 0; }
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) { (void)device; *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  (void)device;
  memory[0] = 141ULL << 30;
  memory[2] = 3ULL << 30;
  memory[1] = memory[0] - memory[2];
  return 0;
}
struct process { unsigned pid; unsigned long long bytes; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, struct process* out) {
  if (device == (void*)1) {
    *count = 0;
    return 0;
  }
  *count = 1;
  memset(out, 0, sizeof *out);
  out->pid = (unsigned)number("FAKE_PID", 1);
  out->bytes = 2ULL << 30;
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  (void)device;
  *active = 1;
  return link < 18 ? 0 : 2;
}
int nvmlDeviceGetP2PStatus(void* a, void* b, int what, int* status) {
  (void)a, (void)b, (void)what;
  *status = number("FAKE_PEER", 0);
  return 0;
}
int cuDriverGetVersion(int* version) { *version = number("FAKE_CUDA", 13000); return 0; }
