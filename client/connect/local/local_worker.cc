#include "client/connect/local/local_worker.h"

#include <signal.h>

#include <cstdlib>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLook = absl::Milliseconds(20);

// Waits for the process; kills it when interrupted.
absl::StatusOr<ExitStatus> Wait(const ProcessIdentity& process, Interrupt* interrupt) {
  while (true) {
    NSA_ASSIGN_OR_RETURN(const std::optional<ExitStatus> exit, TryReap(process.pid));
    if (exit.has_value()) return *exit;
    if (interrupt->SleepFor(kLook)) continue;
    SignalProcess(process, SIGKILL).IgnoreError();
    while (true) {
      NSA_ASSIGN_OR_RETURN(const std::optional<ExitStatus> killed, TryReap(process.pid));
      if (killed.has_value()) return absl::CancelledError("interrupted while nsa-worker ran");
    }
  }
}

}  // namespace

absl::StatusOr<ScratchFolder> ScratchFolder::Make() {
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "nsactl-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return absl::ErrnoToStatus(errno, name);
  return ScratchFolder(name);
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept : path_(std::move(other.path_)) {
  other.path_.clear();
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
}

absl::StatusOr<std::string> RunWorker(const std::string& program,
                                      const std::vector<std::string>& arguments,
                                      Interrupt* interrupt) {
  NSA_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  const fs::path output = scratch.path() / "output";
  std::vector<std::string> argv = {program};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  NSA_ASSIGN_OR_RETURN(const ProcessIdentity process,
                       Spawn({.argv = argv,
                              .environment = FilterEnvironment(
                                  {"PATH", "HOME", "LD_LIBRARY_PATH", "LANG", "HF_ENDPOINT",
                                   "HF_TOKEN", "NSA_DATA_CACHE_BYTES", "NSA_DATA_CACHE_DIR",
                                   "SSL_CERT_FILE", "XDG_CACHE_HOME", "https_proxy", "http_proxy"}),
                              .output = output}));
  NSA_ASSIGN_OR_RETURN(const ExitStatus exit, Wait(process, interrupt));
  NSA_ASSIGN_OR_RETURN(std::string said, ReadWholeFile(output));
  if (exit.code == 0) return said;
  return absl::InvalidArgumentError(absl::StrCat(absl::StripAsciiWhitespace(said), " (",
                                                 fs::path(program).filename().string(),
                                                 " ended with exit code ", exit.code, ")"));
}

std::string WorkerBesideThisProgram() {
  std::error_code error;
  return (fs::read_symlink("/proc/self/exe", error).parent_path() / "nsa-worker").string();
}

}  // namespace nsa::client
