// NVIDIA's management library (NVML), loaded at run time: it comes with the driver, which most
// machines do not have.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nsa/v1/fleet.pb.h"

namespace nsa::agent {

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
  // All GPUs, in the driver's order (by PCI address). One that does not answer is left out.
  std::vector<v1::GpuInfo> Gpus() const;

 private:
  struct Functions;
  explicit Nvml(std::unique_ptr<Functions> functions);
  bool Describe(void* device, v1::GpuInfo* gpu) const;

  const std::unique_ptr<Functions> functions_;
};

}  // namespace nsa::agent
