#include "client/connect/count_data.h"

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/job/load.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "google/protobuf/util/json_util.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLook = absl::Milliseconds(20);

// A new folder, removed with all that is in it.
class ScratchFolder {
 public:
  static absl::StatusOr<ScratchFolder> Make() {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "nsactl-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return absl::ErrnoToStatus(errno, name);
    return ScratchFolder(name);
  }
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  const fs::path& path() const { return path_; }

 private:
  explicit ScratchFolder(fs::path path) : path_(std::move(path)) {}
  fs::path path_;
};

// Waits for the process; kills it when interrupted.
absl::StatusOr<ExitStatus> Wait(const ProcessIdentity& process, Interrupt* interrupt) {
  while (true) {
    NSA_ASSIGN_OR_RETURN(const std::optional<ExitStatus> exit, TryReap(process.pid));
    if (exit.has_value()) return *exit;
    if (interrupt->SleepFor(kLook)) continue;
    SignalProcess(process, SIGKILL).IgnoreError();
    while (true) {
      NSA_ASSIGN_OR_RETURN(const std::optional<ExitStatus> killed, TryReap(process.pid));
      if (killed.has_value()) return absl::CancelledError("interrupted while the data was read");
    }
  }
}

}  // namespace

absl::StatusOr<v1::CorpusSummary> CountData(const v1::JobSpec& spec, const std::string& program,
                                            Interrupt* interrupt) {
  NSA_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  const fs::path job = scratch.path() / "job.yaml", output = scratch.path() / "output";
  NSA_RETURN_IF_ERROR(WriteFileAtomically(job, ToYaml(spec)));
  NSA_ASSIGN_OR_RETURN(
      const ProcessIdentity process,
      Spawn({.argv = {program, "--job", job.string(), "--count-data"},
             .environment = FilterEnvironment({"PATH", "HOME", "LD_LIBRARY_PATH", "LANG"}),
             .output = output}));
  NSA_ASSIGN_OR_RETURN(const ExitStatus exit, Wait(process, interrupt));
  NSA_ASSIGN_OR_RETURN(const std::string said, ReadWholeFile(output));
  v1::CorpusSummary summary;
  if (exit.code == 0 && google::protobuf::util::JsonStringToMessage(said, &summary).ok()) {
    return summary;
  }
  return absl::InvalidArgumentError(absl::StrCat(absl::StripAsciiWhitespace(said), " (",
                                                 fs::path(program).filename().string(),
                                                 " ended with exit code ", exit.code, ")"));
}

std::string WorkerBesideThisProgram() {
  std::error_code error;
  return (fs::read_symlink("/proc/self/exe", error).parent_path() / "nsa-worker").string();
}

}  // namespace nsa::client
