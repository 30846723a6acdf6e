#include "common/estimate/devices.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/estimate/estimate.h"

namespace nsa {
namespace {

constexpr std::string_view kFromDataSheet = "from its data sheet",
                           kMeasured = "measured 2026-11-27",
                           kComputed = "estimated from runs on an H100";

struct DeviceSpeed {
  std::string_view name;    // part of the GPU's name
  double data_sheet_flops;  // dense bf16
  double matrix_flops;      // bf16 matrix products, as reached
  StepShares shares;
  std::string_view source;  // where the expected speed is from
};

// The shares of Hopper follow from two measurements on one H100, 2026-11-27, of m7c with 65,536
// tokens a pass (nsa-bench step): 563,000 tok/s with sequences of 2,048 tokens and 310,500 with one
// of 65,536. With them, 8 x 8,192 is 488,000 (443,100 measured) and 2 x 32,768 389,000 (373,700).
// Those of the A100 are computed from the same steps with the code for sm_80 (docs/a100.md).
constexpr StepShares kHopper = {0.625, 0.2255}, kA100 = {0.738, 0.31}, kOthers = {0.42, 0.42};

// The FLOP rate of large bf16 matrix products. H200: measured 2026-11-20, 8192³ (CUDA 13.0). Other
// GPUs: the dense rate in the data sheet times the H200's ratio of measured rate to data sheet (788
// of 989).
constexpr DeviceSpeed kDevices[] = {
    {"H200 NVL", 835e12, 666e12, kHopper, kFromDataSheet},
    {"H200", 989e12, 788e12, kHopper, kMeasured},
    {"H20", 148e12, 118e12, kHopper, kFromDataSheet},
    {"H100 PCIe", 756e12, 603e12, kHopper, kFromDataSheet},
    {"H100 NVL", 835e12, 666e12, kHopper, kFromDataSheet},
    {"H100", 989e12, 788e12, kHopper, kMeasured},
    {"H800", 989e12, 788e12, kHopper, kFromDataSheet},
    {"A100", 312e12, 249e12, kA100, kComputed},
    {"A800", 312e12, 249e12, kA100, kComputed},
    {"L40S", 362e12, 289e12, kOthers, kFromDataSheet},
    {"RTX 4090", 165e12, 132e12, kOthers, kFromDataSheet},
    {"RTX 3090", 71e12, 57e12, kOthers, kFromDataSheet},
};

// An unknown GPU is taken for an A100.
constexpr double kUnknownGpuFlops = 249e12;

// The part of a GPU that a MIG instance has, by its name: "NVIDIA A100-SXM4-40GB MIG 3g.20gb" has 3
// of 7 compute slices. 1 for a whole GPU.
double PartOf(const std::string& name) {
  constexpr std::string_view kMig = " MIG ";
  constexpr double kSlices = 7;
  const size_t found = name.find(kMig);
  if (found == std::string::npos) return 1;
  const std::string_view profile = std::string_view(name).substr(found + kMig.size());
  const bool counted = profile.size() > 1 && profile[0] >= '1' && profile[0] <= '7' &&
                       (profile[1] == 'g' || profile[1] == 'c');
  return counted ? (profile[0] - '0') / kSlices : 1;
}

// Null when the name is not known.
const DeviceSpeed* FindDevice(const std::string& name) {
  for (const DeviceSpeed& device : kDevices) {
    const size_t at = name.find(device.name);
    if (at == std::string::npos) continue;
    // An RTX A1000 is no A100.
    const size_t behind = at + device.name.size();
    if (behind == name.size() || !absl::ascii_isdigit(name[behind])) return &device;
  }
  return nullptr;
}

}  // namespace

double MatrixFlops(const std::string& device_name) {
  const DeviceSpeed* device = FindDevice(device_name);
  return (device != nullptr ? device->matrix_flops : kUnknownGpuFlops) * PartOf(device_name);
}

StepShares StepSharesOf(const std::string& device_name) {
  const DeviceSpeed* device = FindDevice(device_name);
  return device != nullptr ? device->shares : kA100;
}

double PeakFlops(const std::string& device_name) {
  const DeviceSpeed* device = FindDevice(device_name);
  return device != nullptr ? device->data_sheet_flops * PartOf(device_name) : 0;
}

std::string SpeedSource(const std::string& device_name, int cores) {
  if (device_name == "cpu") {
    return absl::StrFormat("%d CPU %s, measured 2026-11-20", std::max(1, cores),
                           cores > 1 ? "cores" : "core");
  }
  const DeviceSpeed* device = FindDevice(device_name);
  if (device == nullptr) {
    return absl::StrCat(device_name, " taken for an A100, ", std::string(kComputed));
  }
  return absl::StrCat(std::string(device->name), ", ", std::string(device->source));
}

}  // namespace nsa
