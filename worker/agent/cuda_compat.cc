#include "worker/agent/cuda_compat.h"

#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

constexpr char kLibrary[] = "libcuda.so.1";
constexpr int kCuda13Driver = 580;  // runs CUDA 13 by itself

bool HasLibrary(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / kLibrary, error);
}

bool IsOld(const std::string& version) {
  int branch = 0;
  return absl::SimpleAtoi(version.substr(0, version.find('.')), &branch) && branch < kCuda13Driver;
}

}  // namespace

std::string KernelDriverVersion() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  file >> version;
  return version;
}

std::span<const fs::path> UsualCompatFolders() {
  static const auto* const folders =
      new fs::path[2]{"/usr/local/cuda-13.0/compat", "/usr/local/cuda/compat"};
  return {folders, 2};
}

absl::StatusOr<std::string> FindCudaCompat(const std::string& configured,
                                           const std::string& driver_version,
                                           std::span<const fs::path> usual) {
  if (configured == "none") return "";
  if (!configured.empty()) {
    if (fs::path(configured).is_absolute() && HasLibrary(configured)) return configured;
    return absl::InvalidArgumentError(
        absl::StrCat("cuda_compat_path: ", configured, " (an absolute folder with ", kLibrary,
                     "); install cuda-compat-13-0 and name its folder, or write none"));
  }
  if (!IsOld(driver_version)) return "";
  for (const fs::path& folder : usual) {
    if (HasLibrary(folder)) return folder.string();
  }
  return "";
}

std::string WithCompatFirst(const std::string& folder, const std::string& library_path) {
  if (folder.empty()) return library_path;
  return library_path.empty() ? folder : absl::StrCat(folder, ":", library_path);
}

}  // namespace nsa::agent
