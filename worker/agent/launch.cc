#include "worker/agent/launch.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/data_environment.h"
#include "common/run/oom_score.h"
#include "nsa/v1/worker.pb.h"
#include "spdlog/spdlog.h"
#include "worker/agent/cuda_compat.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

// The variables of the agent's environment that a worker inherits, with those for remote data.
// LD_PRELOAD and similar ones are left out on purpose.
constexpr const char* kEnvironment[] = {"HOME",
                                        "LANG",
                                        "LC_ALL",
                                        "LD_LIBRARY_PATH",
                                        "LOGNAME",
                                        "NCCL_DEBUG",
                                        "NCCL_IB_HCA",
                                        "NCCL_NVLS_ENABLE",
                                        "NCCL_SOCKET_IFNAME",
                                        "NSA_CUPTI_LIBRARY",
                                        "NSA_LOG_LEVEL",
                                        "NSA_NCCL_LIBRARY",
                                        "OMP_WAIT_POLICY",
                                        "PATH",
                                        "TMPDIR",
                                        "TZ",
                                        "USER"};

bool OnGpu(const v1::WorkerAssignment& assignment) {
  return !assignment.cuda_device().empty() ||
         assignment.spec().runtime().device() == v1::DEVICE_CUDA;
}

std::map<std::string, std::string> EnvironmentOf(const v1::WorkerAssignment& assignment,
                                                 const AgentOptions& options) {
  std::vector<std::string> names =
      WithDataEnvironment({std::begin(kEnvironment), std::end(kEnvironment)});
  names.insert(names.end(), options.pass_environment.begin(), options.pass_environment.end());
  std::map<std::string, std::string> environment = FilterEnvironment(names);
  if (OnGpu(assignment) && !options.cuda_compat_path.empty()) {
    std::string& libraries = environment["LD_LIBRARY_PATH"];
    libraries = WithCompatFirst(options.cuda_compat_path, libraries);
  }
  if (!options.data_cache_dir.empty()) environment["NSA_DATA_CACHE_DIR"] = options.data_cache_dir;
  if (options.data_cache_bytes) {
    environment["NSA_DATA_CACHE_BYTES"] = absl::StrCat(*options.data_cache_bytes);
  }
  // The worker sees only its own GPU; a CPU worker sees none.
  environment["CUDA_VISIBLE_DEVICES"] = assignment.cuda_device();
  return environment;
}

v1::WorkerLaunch LaunchOf(const v1::WorkerAssignment& assignment, const RunDir& dir,
                          const AgentOptions& options) {
  v1::WorkerLaunch launch;
  *launch.mutable_spec() = assignment.spec();
  launch.set_job_id(assignment.job_id());
  launch.set_generation(assignment.generation());
  launch.set_rank(assignment.rank());
  launch.set_world_size(assignment.world_size());
  launch.set_cuda_device(assignment.cuda_device());
  launch.set_submitted_resume(assignment.submitted_resume());
  *launch.mutable_allowed_urls() = assignment.allowed_urls();
  launch.set_cpu_threads(std::max(1, UsableCores() / std::max(1, assignment.ranks_on_node())));
  if (assignment.world_size() > 1) {
    launch.set_rendezvous_dir(dir.rendezvous().string());
  }
  if (assignment.several_machines()) {
    launch.set_rank_address(options.rank_address);
    launch.set_rank_ports(options.rank_ports);
  }
  // A stop requested before the start: the worker knows it before its first step, however short its
  // steps are. STOP_MODE_NOW is not passed on: the agent then starts no worker.
  if (const v1::StopMode mode = assignment.stop().mode();
      mode == v1::STOP_MODE_AT_STEP || mode == v1::STOP_MODE_GRACEFUL) {
    *launch.mutable_stop() = assignment.stop();
  }
  return launch;
}

absl::Status MakeFolders(const RunDir& dir) {
  std::error_code error;
  for (const fs::path& path : {dir.path, dir.rendezvous()}) {
    fs::create_directories(path, error);
    if (error) {
      return absl::ErrnoToStatus(error.value(), absl::StrCat("run folder: ", path.string()));
    }
  }
  return absl::OkStatus();
}

// Command line of a process.
std::vector<std::string> ArgumentsOf(const fs::path& process) {
  const absl::StatusOr<std::string> text = ReadWholeFile(process / "cmdline");
  if (!text.ok()) return {};
  return absl::StrSplit(*text, '\0');
}

}  // namespace

absl::Status CheckAssignment(const v1::WorkerAssignment& assignment) {
  const std::string& id = assignment.job_id();
  const bool names_a_folder = !id.empty() && id.size() <= 128 && id.front() != '.' &&
                              std::all_of(id.begin(), id.end(), [](unsigned char c) {
                                return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
                              });
  if (!names_a_folder) {
    return absl::InvalidArgumentError(absl::StrCat("job id '", id, "' cannot name a folder"));
  }
  if (assignment.generation() < 1 || assignment.rank() < 0 ||
      assignment.rank() >= assignment.world_size()) {
    return absl::InvalidArgumentError(absl::StrFormat("generation %d, rank %d of %d: out of range",
                                                      assignment.generation(), assignment.rank(),
                                                      assignment.world_size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ProcessIdentity> Launch(const v1::WorkerAssignment& assignment, const RunDir& dir,
                                       const AgentOptions& options) {
  NSA_RETURN_IF_ERROR(CheckAssignment(assignment));
  NSA_RETURN_IF_ERROR(MakeFolders(dir));
  NSA_RETURN_IF_ERROR(
      WriteFileAtomically(dir.launch(), LaunchOf(assignment, dir, options).SerializeAsString()));
  const fs::path& program =
      OnGpu(assignment) ? options.cuda_worker_program : options.worker_program;
  NSA_ASSIGN_OR_RETURN(const ProcessIdentity identity,
                       Spawn({.argv = {program.string(), "--run-dir", dir.path.string()},
                              .environment = EnvironmentOf(assignment, options),
                              .working_dir = dir.path,
                              .output = dir.log()}));
  if (const absl::Status status = RaiseOomScore(identity.pid, kWorkerOomScore); !status.ok()) {
    spdlog::warn("{}: {}", dir.path.string(), status.ToString());
  }
  // Without the file a later agent still finds the worker, by its command line.
  if (const absl::Status status = WriteIdentity(dir.identity(), identity); !status.ok()) {
    spdlog::warn("{}: {}", dir.path.string(), status.ToString());
  }
  return identity;
}

absl::StatusOr<ProcessIdentity> FindWorkerOf(const RunDir& dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::vector<std::string> arguments = ArgumentsOf(entry.path());
    if (arguments.size() >= 3 && arguments[1] == "--run-dir" && arguments[2] == dir.path.string()) {
      return IdentityOf(pid);
    }
  }
  return absl::NotFoundError(absl::StrCat("no process runs for ", dir.path.string()));
}

}  // namespace nsa::agent
