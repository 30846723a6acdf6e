// The functions of libnvidia-ml.so.1 that the agent uses, with one GPU.
#include "tests/testing/fakes/fake_nvml.h"

#include <cstdio>
#include <thread>

namespace {

FakeNvml fake = {.free_bytes = int64_t{79} << 30, .hangs = false, .waiting = 0};

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

int Say(const char* what, char* text, unsigned size) {
  std::snprintf(text, size, "%s", what);
  return 0;
}

}  // namespace

extern "C" {

FakeNvml* NsaFakeNvml() { return &fake; }

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { return Say("580.1", text, size); }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  *device = &fake;
  return 0;
}
int nvmlDeviceGetUUID(void*, char* text, unsigned size) { return Say("GPU-0", text, size); }
int nvmlDeviceGetName(void*, char* text, unsigned size) { return Say("Fake", text, size); }
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  ++fake.waiting;
  while (fake.hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --fake.waiting;
  memory->total = 80ULL << 30;
  memory->free = static_cast<unsigned long long>(fake.free_bytes.load());
  memory->used = memory->total - memory->free;
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 8;
  *minor = 0;
  return 0;
}
}
