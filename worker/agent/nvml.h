// NVIDIA's management library (NVML), loaded at run time: it comes with the driver, which most
// machines do not have.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nsa/v1/fleet.pb.h"

namespace nsa::agent {

// Whether the library is there. Asks no driver.
bool NvmlIsInstalled();

// Not thread-safe.
class Nvml {
 public:
  // nullptr when there is no NVIDIA driver, or NVML does not start.
  static std::unique_ptr<Nvml> Open();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // For example "550.54.15"; empty when the driver does not answer.
  std::string DriverVersion() const;
  // All GPUs, in the driver's order (by PCI address), with what they do now, their errors and, if
  // no rank may be placed on them, why. One that has never answered is left out; one that no longer
  // does is listed as it was, with that fault.
  std::vector<v1::GpuInfo> Gpus();

 private:
  struct Functions;
  explicit Nvml(std::unique_ptr<Functions> functions);
  bool Describe(void* device, v1::GpuInfo* gpu) const;
  void Measure(void* device, v1::GpuInfo* gpu) const;
  void AddLinks(void* device, v1::GpuInfo* gpu) const;
  void ListenForErrors();
  void ReadErrors();

  const std::unique_ptr<Functions> functions_;
  void* errors_ = nullptr;                 // NVML's set of events; null if it has none
  std::map<unsigned, v1::GpuInfo> known_;  // by position: as it last answered
  std::map<void*, int> xids_;              // by device: the latest XID error since Open()
};

// Bytes a second in each direction over one NVLink of this version, as nvmlDeviceGetNvLinkVersion()
// numbers them (2 is NVLink 2.0, 6 is 4.0, 7 is 5.0); and over PCI Express of this generation and
// number of lanes, without what its encoding takes. 0 for what is not known. From the
// specifications.
double NvlinkBytesPerSecond(unsigned version);
double PcieBytesPerSecond(unsigned generation, unsigned lanes);

// Why no rank may be placed on a GPU: uncorrectable memory errors, or an XID error after which the
// GPU needs a reset or replacement (48, 64, 79 and 95). Empty if it is healthy. Errors of programs,
// such as XID 13 and 31, are no fault of the GPU.
std::string FaultOf(const v1::GpuInfo& gpu);

}  // namespace nsa::agent
