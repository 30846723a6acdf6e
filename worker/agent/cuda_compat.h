// NVIDIA's forward-compatibility package (cuda-compat-13-0): libraries with which the kernel driver
// of an older branch of a data-centre GPU runs CUDA 13. They must come first on the library path.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace nsa::agent {

// The version of the loaded NVIDIA kernel driver, for example "535.86.10"; empty without one. Reads
// a file and asks no driver.
std::string KernelDriverVersion();

// Where the package installs its libraries.
std::span<const std::filesystem::path> UsualCompatFolders();

// The folder that CUDA workers use; empty: the driver's own libraries. `configured` is
// cuda_compat_path of the agent's configuration: a folder, "none", or empty, which means the first
// of `usual` with the library if the driver is too old for CUDA 13. InvalidArgument when a folder
// is named that does not have the library.
absl::StatusOr<std::string> FindCudaCompat(const std::string& configured,
                                           const std::string& driver_version,
                                           std::span<const std::filesystem::path> usual);

// LD_LIBRARY_PATH with `folder` in front, unless that is empty.
std::string WithCompatFirst(const std::string& folder, const std::string& library_path);

}  // namespace nsa::agent
