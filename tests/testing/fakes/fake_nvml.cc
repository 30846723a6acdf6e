// The functions of libnvidia-ml.so.1 that the agent uses, with one GPU.
#include "tests/testing/fakes/fake_nvml.h"

#include <cstdio>
#include <thread>

namespace {

FakeNvml fake = {.free_bytes = int64_t{79} << 30,
                 .hangs = false,
                 .waiting = 0,
                 .uncorrected_errors = 0,
                 .xid = 0,
                 .lost = false};

struct Event {
  void* device;
  unsigned long long type;
  unsigned long long data;
  unsigned gpu_instance;
  unsigned compute_instance;
};

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
int nvmlDeviceGetUUID(void*, char* text, unsigned size) {
  return fake.lost ? 15 : Say("GPU-0", text, size);  // 15: NVML_ERROR_GPU_IS_LOST
}
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
int nvmlDeviceGetUtilizationRates(void*, unsigned* percents) {
  percents[0] = 75;
  percents[1] = 20;
  return 0;
}
int nvmlDeviceGetNvLinkState(void*, unsigned link, unsigned* state) {
  *state = link < 12 ? 1 : 0;
  return link < 14 ? 0 : 2;  // NVML_ERROR_INVALID_ARGUMENT
}
int nvmlDeviceGetNvLinkVersion(void*, unsigned, unsigned* version) {
  *version = 4;  // 3.0
  return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 4;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* lanes) {
  *lanes = 16;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 412'500;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) {
  *celsius = 61;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int, unsigned* megahertz) {
  *megahertz = 1593;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void*, int, int, unsigned long long* errors) {
  *errors = static_cast<unsigned long long>(fake.uncorrected_errors.load());
  return 0;
}
int nvmlEventSetCreate(void** set) {
  *set = &fake;
  return 0;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) { return 0; }
int nvmlEventSetFree(void*) { return 0; }
int nvmlEventSetWait_v2(void*, Event* event, unsigned) {
  const int64_t xid = fake.xid.exchange(0);
  if (xid == 0) return 10;  // NVML_ERROR_TIMEOUT
  *event = {.device = &fake, .type = 8, .data = static_cast<unsigned long long>(xid)};
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 8;
  *minor = 0;
  return 0;
}
}
