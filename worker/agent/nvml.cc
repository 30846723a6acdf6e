#include "worker/agent/nvml.h"

#include <dlfcn.h>

#include <cstdint>
#include <utility>

namespace nsa::agent {
namespace {

// The few declarations of nvml.h that are needed here; they are part of NVML's stable ABI.
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
constexpr int kSuccess = 0;

}  // namespace

struct Nvml::Functions {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, void**) = nullptr;
  int (*uuid)(void*, char*, unsigned) = nullptr;
  int (*name)(void*, char*, unsigned) = nullptr;
  int (*memory)(void*, NvmlMemory*) = nullptr;
  int (*compute_capability)(void*, int*, int*) = nullptr;

  ~Functions() {
    if (library != nullptr) dlclose(library);
  }

  template <typename Function>
  bool Find(const char* symbol, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, symbol));
    return *function != nullptr;
  }

  bool FindAll() {
    return Find("nvmlInit_v2", &init) && Find("nvmlShutdown", &shutdown) &&
           Find("nvmlSystemGetDriverVersion", &driver_version) &&
           Find("nvmlDeviceGetCount_v2", &count) &&
           Find("nvmlDeviceGetHandleByIndex_v2", &handle) && Find("nvmlDeviceGetUUID", &uuid) &&
           Find("nvmlDeviceGetName", &name) && Find("nvmlDeviceGetMemoryInfo", &memory) &&
           Find("nvmlDeviceGetCudaComputeCapability", &compute_capability);
  }
};

std::unique_ptr<Nvml> Nvml::Open() {
  auto functions = std::make_unique<Functions>();
  functions->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (functions->library == nullptr || !functions->FindAll()) return nullptr;
  if (functions->init() != kSuccess) return nullptr;
  return std::unique_ptr<Nvml>(new Nvml(std::move(functions)));
}

Nvml::Nvml(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}

Nvml::~Nvml() { functions_->shutdown(); }

std::string Nvml::DriverVersion() const {
  char text[96] = {};
  return functions_->driver_version(text, sizeof text) == kSuccess ? text : "";
}

std::vector<v1::GpuInfo> Nvml::Gpus() const {
  std::vector<v1::GpuInfo> gpus;
  unsigned count = 0;
  if (functions_->count(&count) != kSuccess) return gpus;
  for (unsigned i = 0; i < count; ++i) {
    void* device = nullptr;
    v1::GpuInfo gpu;
    if (functions_->handle(i, &device) == kSuccess && Describe(device, &gpu)) gpus.push_back(gpu);
  }
  return gpus;
}

bool Nvml::Describe(void* device, v1::GpuInfo* gpu) const {
  char uuid[96] = {};
  char name[96] = {};
  NvmlMemory memory = {};
  int major = 0;
  int minor = 0;
  if (functions_->uuid(device, uuid, sizeof uuid) != kSuccess ||
      functions_->name(device, name, sizeof name) != kSuccess ||
      functions_->memory(device, &memory) != kSuccess ||
      functions_->compute_capability(device, &major, &minor) != kSuccess) {
    return false;
  }
  gpu->set_uuid(uuid);
  gpu->set_name(name);
  gpu->set_memory_bytes(static_cast<int64_t>(memory.total));
  gpu->set_free_bytes(static_cast<int64_t>(memory.free));
  gpu->set_compute_capability(major * 10 + minor);
  return true;
}

}  // namespace nsa::agent
