#include "worker/agent/nvml.h"

#include <dlfcn.h>

#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"

namespace nsa::agent {
namespace {

// The few declarations of nvml.h that are needed here; they are part of NVML's stable ABI.
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct NvmlUtilization {
  unsigned gpu;  // percent
  unsigned memory;
};
struct NvmlEvent {
  void* device;
  unsigned long long type;
  unsigned long long data;  // of an XID error: its number
  unsigned gpu_instance;
  unsigned compute_instance;
};
constexpr int kSuccess = 0;
constexpr int kGpuSensor = 0;                 // NVML_TEMPERATURE_GPU
constexpr int kMemoryClock = 2;               // NVML_CLOCK_MEM
constexpr int kUncorrected = 1;               // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr int kSinceDriverLoad = 0;           // NVML_VOLATILE_ECC
constexpr unsigned long long kXidErrors = 8;  // nvmlEventTypeXidCriticalError
constexpr unsigned kMostLinks = 18;           // NVML_NVLINK_MAX_LINKS
constexpr unsigned kLinkIsUp = 1;             // NVML_FEATURE_ENABLED

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
  // Null in drivers that do not have them.
  int (*utilization)(void*, NvmlUtilization*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;  // milliwatts
  int (*temperature)(void*, int, unsigned*) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;  // MHz
  int (*ecc_errors)(void*, int, int, unsigned long long*) = nullptr;
  int (*link_state)(void*, unsigned, unsigned*) = nullptr;
  int (*link_version)(void*, unsigned, unsigned*) = nullptr;
  int (*pcie_generation)(void*, unsigned*) = nullptr;
  int (*pcie_lanes)(void*, unsigned*) = nullptr;
  int (*make_events)(void**) = nullptr;
  int (*register_events)(void*, unsigned long long, void*) = nullptr;
  int (*wait_for_event)(void*, NvmlEvent*, unsigned) = nullptr;
  int (*free_events)(void*) = nullptr;

  ~Functions() {
    if (library != nullptr) dlclose(library);
  }

  template <typename Function>
  bool Find(const char* symbol, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, symbol));
    return *function != nullptr;
  }

  void FindOptional() {
    Find("nvmlDeviceGetUtilizationRates", &utilization);
    Find("nvmlDeviceGetPowerUsage", &power);
    Find("nvmlDeviceGetTemperature", &temperature);
    Find("nvmlDeviceGetClockInfo", &clock);
    Find("nvmlDeviceGetTotalEccErrors", &ecc_errors);
    Find("nvmlDeviceGetNvLinkState", &link_state);
    Find("nvmlDeviceGetNvLinkVersion", &link_version);
    Find("nvmlDeviceGetMaxPcieLinkGeneration", &pcie_generation);
    Find("nvmlDeviceGetMaxPcieLinkWidth", &pcie_lanes);
    Find("nvmlEventSetCreate", &make_events);
    Find("nvmlDeviceRegisterEvents", &register_events);
    Find("nvmlEventSetWait_v2", &wait_for_event);
    Find("nvmlEventSetFree", &free_events);
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

bool NvmlIsInstalled() {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

std::unique_ptr<Nvml> Nvml::Open() {
  auto functions = std::make_unique<Functions>();
  functions->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (functions->library == nullptr || !functions->FindAll()) return nullptr;
  if (functions->init() != kSuccess) return nullptr;
  return std::unique_ptr<Nvml>(new Nvml(std::move(functions)));
}

Nvml::Nvml(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {
  functions_->FindOptional();
  ListenForErrors();
}

Nvml::~Nvml() {
  if (errors_ != nullptr) functions_->free_events(errors_);
  functions_->shutdown();
}

void Nvml::ListenForErrors() {
  const Functions& nvml = *functions_;
  if (nvml.make_events == nullptr || nvml.register_events == nullptr ||
      nvml.wait_for_event == nullptr || nvml.free_events == nullptr ||
      nvml.make_events(&errors_) != kSuccess) {
    errors_ = nullptr;
    return;
  }
  unsigned count = 0;
  if (nvml.count(&count) != kSuccess) return;
  for (unsigned i = 0; i < count; ++i) {
    void* device = nullptr;
    if (nvml.handle(i, &device) == kSuccess) nvml.register_events(device, kXidErrors, errors_);
  }
}

void Nvml::ReadErrors() {
  if (errors_ == nullptr) return;
  NvmlEvent event = {};
  while (functions_->wait_for_event(errors_, &event, /*milliseconds=*/0) == kSuccess) {
    if (event.type == kXidErrors) xids_[event.device] = static_cast<int>(event.data);
  }
}

std::string Nvml::DriverVersion() const {
  char text[96] = {};
  return functions_->driver_version(text, sizeof text) == kSuccess ? text : "";
}

std::vector<v1::GpuInfo> Nvml::Gpus() {
  ReadErrors();
  std::vector<v1::GpuInfo> gpus;
  unsigned count = 0;
  if (functions_->count(&count) != kSuccess) return gpus;
  for (unsigned i = 0; i < count; ++i) {
    void* device = nullptr;
    v1::GpuInfo gpu;
    if (functions_->handle(i, &device) != kSuccess || !Describe(device, &gpu)) {
      if (const auto before = known_.find(i); before != known_.end()) {
        gpu = before->second;
        gpu.clear_utilization_ratio();  // what was measured holds no longer
        gpu.clear_power_watts();
        gpu.clear_temperature_celsius();
        gpu.clear_memory_clock_hertz();
        if (gpu.fault().empty()) gpu.set_fault("it no longer answers the driver");
        gpus.push_back(std::move(gpu));
      }
      continue;
    }
    Measure(device, &gpu);
    AddLinks(device, &gpu);
    if (const auto xid = xids_.find(device); xid != xids_.end()) gpu.set_xid(xid->second);
    gpu.set_fault(FaultOf(gpu));
    known_[i] = gpu;
    gpus.push_back(std::move(gpu));
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

// What a driver does not have or a GPU does not report stays absent.
void Nvml::Measure(void* device, v1::GpuInfo* gpu) const {
  const Functions& nvml = *functions_;
  NvmlUtilization busy = {};
  unsigned value = 0;
  unsigned long long errors = 0;
  if (nvml.utilization != nullptr && nvml.utilization(device, &busy) == kSuccess) {
    gpu->set_utilization_ratio(busy.gpu / 100.0);
  }
  if (nvml.power != nullptr && nvml.power(device, &value) == kSuccess) {
    gpu->set_power_watts(value / 1000.0);
  }
  if (nvml.temperature != nullptr && nvml.temperature(device, kGpuSensor, &value) == kSuccess) {
    gpu->set_temperature_celsius(value);
  }
  if (nvml.clock != nullptr && nvml.clock(device, kMemoryClock, &value) == kSuccess) {
    gpu->set_memory_clock_hertz(value * 1e6);
  }
  if (nvml.ecc_errors != nullptr &&
      nvml.ecc_errors(device, kUncorrected, kSinceDriverLoad, &errors) == kSuccess) {
    gpu->set_uncorrected_errors(static_cast<int64_t>(errors));
  }
}

void Nvml::AddLinks(void* device, v1::GpuInfo* gpu) const {
  const Functions& nvml = *functions_;
  double bytes = 0;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    unsigned state = 0, version = 0;
    if (nvml.link_state == nullptr || nvml.link_version == nullptr) break;
    if (nvml.link_state(device, link, &state) != kSuccess || state != kLinkIsUp) continue;
    if (nvml.link_version(device, link, &version) == kSuccess) {
      bytes += NvlinkBytesPerSecond(version);
    }
  }
  gpu->set_nvlink_bytes_per_second(bytes);
  unsigned generation = 0, lanes = 0;
  if (nvml.pcie_generation != nullptr && nvml.pcie_lanes != nullptr &&
      nvml.pcie_generation(device, &generation) == kSuccess &&
      nvml.pcie_lanes(device, &lanes) == kSuccess) {
    gpu->set_pcie_bytes_per_second(PcieBytesPerSecond(generation, lanes));
  }
}

double NvlinkBytesPerSecond(unsigned version) {
  if (version == 0) return 0;
  if (version == 1) return 20e9;  // 1.0
  return version < 7 ? 25e9 : 50e9;
}

double PcieBytesPerSecond(unsigned generation, unsigned lanes) {
  constexpr double kLane[] = {0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  return generation < std::size(kLane) ? kLane[generation] * lanes : 0;
}

std::string FaultOf(const v1::GpuInfo& gpu) {
  if (gpu.uncorrected_errors() > 0) {
    return absl::StrCat(Count(gpu.uncorrected_errors(), "uncorrectable memory error"),
                        " since the driver was loaded");
  }
  switch (gpu.xid()) {
    case 48:
      return "XID 48: a double-bit memory error";
    case 64:
      return "XID 64: a faulty memory row could not be replaced";
    case 79:
      return "XID 79: the GPU has fallen off the bus";
    case 95:
      return "XID 95: an uncontained memory error";
    default:
      return "";
  }
}

}  // namespace nsa::agent
