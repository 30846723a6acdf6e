#include "client/commands/model/device.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/commands/model/run_program.h"
#include "client/connect/local/local_worker.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

constexpr char kCudaWorker[] = "nsa-worker-cuda";

}  // namespace

void AddDevice(Options* options, std::string* device) {
  options->Text("--device", "cpu|cuda", device,
                "Where to compute: cuda is the first GPU of CUDA_VISIBLE_DEVICES, by "
                "nsa-worker-cuda (default: cpu)");
}

absl::Status CheckDevice(const std::string& device) {
  if (device == "cpu") return absl::OkStatus();
  if (device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: '", device, "' (must be cpu or cuda); choose one"));
  }
  const std::string program = WorkerBesideThisProgram(kCudaWorker);
  if (access(program.c_str(), X_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--device: cuda (", program,
                   " is not there); install nsa-worker-cuda beside "
                   "nsactl, or use --device cpu"));
}

std::string WorkerOf(const std::string& device) {
  return WorkerBesideThisProgram(device == "cuda" ? kCudaWorker : "nsa-worker");
}

absl::StatusOr<ExitCode> RunModelInForeground(Session& session, const std::string& device,
                                              std::vector<std::string> arguments) {
  if (device != "cuda") return RunWorkerInForeground(session, std::move(arguments));
  arguments.push_back("--device=" + device);
  return RunWorkerInForeground(session, std::move(arguments), kCudaWorker);
}

absl::StatusOr<ExitCode> MeasureModelInForeground(Session& session, const std::string& device,
                                                  std::vector<std::string> arguments) {
  if (!session.structured()) return RunModelInForeground(session, device, std::move(arguments));
  NSA_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  const std::string file = (scratch.path() / "numbers.json").string();
  arguments.push_back("--json=" + file);
  NSA_ASSIGN_OR_RETURN(const ExitCode code,
                       RunModelInForeground(session, device, std::move(arguments)));
  if (code != ExitCode::kOk) return code;
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(file));
  session.PrintDocument(nlohmann::ordered_json::parse(text, nullptr, false));
  return ExitCode::kOk;
}

}  // namespace nsa::client
