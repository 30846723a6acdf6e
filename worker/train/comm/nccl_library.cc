#include "worker/train/comm/nccl_library.h"

#include <cstdlib>
#include <map>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/shared_library.h"
#include "common/base/status.h"
#include "worker/train/comm/nccl_log.h"

namespace nsa::train::nccl {
namespace {

constexpr int kOldest = 21700;
constexpr int kNewest = 29999;
constexpr char kLoopback[] = "lo";
constexpr char kPrefix[] = "NCCL_";

// What the process was started with: what there is at the first call.
const std::map<std::string, std::string>& Given() {
  static const std::map<std::string, std::string> given = VariablesWith(kPrefix);
  return given;
}

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status CheckVersion(const Library& library) {
  if (library.version >= kOldest && library.version <= kNewest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("NCCL: version ", VersionText(library.version), " of ", library.path, " (",
                   VersionText(kOldest), " to 2.99); install libnccl2 or nvidia-nccl-cu13"));
}

}  // namespace

std::string Library::description() const {
  return absl::StrCat("NCCL ", VersionText(version), " (", path, ")");
}

absl::StatusOr<Library> Load(const std::string& file) {
  NSA_ASSIGN_OR_RETURN(
      const SharedLibrary shared,
      OpenSharedLibrary({.what = "NCCL",
                         .names = {"libnccl.so.2", "libnccl.so"},
                         .pip_folders = {"nvidia/nccl/lib"},
                         .help = "install libnccl2 (or pip install nvidia-nccl-cu13), name the "
                                 "file in NSA_NCCL_LIBRARY, or train with resources.gpus: 1",
                         .file = file}));
  Library library;
  library.path = shared.path;
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclGetVersion", &library.get_version));
  if (library.get_version(&library.version) != kSuccess) library.version = 0;
  NSA_RETURN_IF_ERROR(CheckVersion(library));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclGetUniqueId", &library.get_unique_id));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclCommInitRankConfig", &library.init_rank));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclCommDestroy", &library.destroy));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclCommAbort", &library.abort));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclCommGetAsyncError", &library.async_error));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclAllReduce", &library.all_reduce));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclReduce", &library.reduce));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclBroadcast", &library.broadcast));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclGroupStart", &library.group_start));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclGroupEnd", &library.group_end));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclSend", &library.send));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclRecv", &library.receive));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclGetErrorString", &library.error_string));
  NSA_RETURN_IF_ERROR(shared.Resolve("ncclGetLastError", &library.last_error));
  return library;
}

void SetEnvironment() {
  Given();
  // A program that uses NVLink multicast can disable all GPUs of a shared host.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  setenv("NCCL_ALGO", "Ring", 1);
  setenv("NCCL_PROTO", "Simple", 1);
  // Registered buffers outlive their graph, and an abort waits for them.
  setenv("NCCL_GRAPH_REGISTER", "0", 1);
  setenv("NCCL_RAS_ENABLE", "0", 1);  // it would open a listening socket
  unsetenv("NCCL_COMM_ID");           // it would replace the id that rank 0 broadcasts
  setenv("NCCL_SOCKET_IFNAME", kLoopback, 0);
  RedirectLog();
  setenv("NCCL_DEBUG", "WARN", 0);
}

void UseInterface(const std::string& name) {
  const char* present = std::getenv("NCCL_SOCKET_IFNAME");
  if (present != nullptr && std::string_view(present) != kLoopback) return;
  setenv("NCCL_SOCKET_IFNAME", absl::StrCat("=", name).c_str(), 1);  // =: this name, not a prefix
}

std::vector<ReplacedVariable> ReplacedEnvironment() {
  return ReplacedVariables(Given(), VariablesWith(kPrefix));
}

std::string ReplacedText(const std::vector<ReplacedVariable>& variables) {
  return CleanLine(
      absl::StrJoin(variables, ", ", [](std::string* text, const ReplacedVariable& variable) {
        absl::StrAppend(text, variable.name,
                        variable.used.has_value() ? absl::StrCat("=", *variable.used)
                                                  : std::string(" is removed"),
                        " (", variable.given, " was set)");
      }));
}

bool EnvironmentIsSet() {
  const char* multicast = std::getenv("NCCL_NVLS_ENABLE");
  const char* algorithm = std::getenv("NCCL_ALGO");
  return multicast != nullptr && std::string_view(multicast) == "0" && algorithm != nullptr &&
         std::string_view(algorithm) == "Ring";
}

}  // namespace nsa::train::nccl
