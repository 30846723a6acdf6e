#include "worker/agent/launch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/cores.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/data_environment.h"
#include "common/run/gpu_environment.h"
#include "common/run/oom_score.h"
#include "common/run/run_file.h"
#include "nsa/v1/worker.pb.h"
#include "spdlog/spdlog.h"
#include "worker/agent/cuda_compat.h"
#include "worker/agent/run_folder.h"
#include "worker/agent/user/cgroup.h"
#include "worker/agent/user/exec_as.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

// The variables of the agent's environment that a worker inherits, with those for remote data and
// for GPUs. LD_PRELOAD and similar ones are left out on purpose.
constexpr const char* kEnvironment[] = {"HOME",
                                        "LANG",
                                        "LC_ALL",
                                        "LD_LIBRARY_PATH",
                                        "LOGNAME",
                                        "NSA_LOG_LEVEL",
                                        "OMP_WAIT_POLICY",
                                        "OPENBLAS_CORETYPE",
                                        "OPENBLAS_L2_SIZE",
                                        "PATH",
                                        "TMPDIR",
                                        "TZ",
                                        "USER"};

bool OnGpu(const v1::WorkerAssignment& assignment) {
  return !assignment.cuda_device().empty() ||
         assignment.spec().runtime().device() == v1::DEVICE_CUDA;
}

// What is the agent's own: a rank of another user would use its folders, and that user could read
// its secrets. The address of a proxy may have a password.
constexpr const char* kOfTheAgent[] = {"ALL_PROXY",
                                       "AWS_ACCESS_KEY_ID",
                                       "AWS_CONFIG_FILE",
                                       "AWS_PROFILE",
                                       "AWS_SECRET_ACCESS_KEY",
                                       "AWS_SESSION_TOKEN",
                                       "AWS_SHARED_CREDENTIALS_FILE",
                                       "HF_TOKEN",
                                       "HTTPS_PROXY",
                                       "XDG_CACHE_HOME",
                                       "all_proxy",
                                       "http_proxy",
                                       "https_proxy"};

// The folder of the data cache for the ranks of `user`; the worker's default if there is none.
absl::StatusOr<std::string> DataCacheOf(const AgentOptions& options, const UnixUser* user) {
  if (user == nullptr || options.data_cache_dir.empty()) return options.data_cache_dir.string();
  std::error_code error;
  if (fs::create_directories(options.data_cache_dir, error)) {
    fs::permissions(options.data_cache_dir, fs::perms(0711), error);
  }
  const fs::path own = options.data_cache_dir / user->name;
  const bool made = mkdir(own.c_str(), 0700) == 0;
  const Fd folder(open(own.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  const bool ours = made && folder.valid() && fchown(folder.get(), user->uid, user->gid) == 0;
  if (!folder.valid() || (made && !ours) || fstat(folder.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("data_cache_dir: ", own.string()));
  }
  if (info.st_uid == user->uid) return own.string();
  return absl::PermissionDeniedError(absl::StrCat("data_cache_dir: ", own.string(),
                                                  " belongs to user ", info.st_uid, " (not to ",
                                                  user->name, "); remove it"));
}

// With `user`, the ranks' variables name that user and that user's folders.
absl::StatusOr<std::map<std::string, std::string>> EnvironmentOf(
    const v1::WorkerAssignment& assignment, const AgentOptions& options, const UnixUser* user) {
  std::vector<std::string> names =
      WithGpuEnvironment(WithDataEnvironment({std::begin(kEnvironment), std::end(kEnvironment)}));
  if (user != nullptr) {
    std::erase_if(names, [](const std::string& name) {
      return std::ranges::find(kOfTheAgent, name) != std::end(kOfTheAgent);
    });
  }
  names.insert(names.end(), options.pass_environment.begin(), options.pass_environment.end());
  std::map<std::string, std::string> environment = FilterEnvironment(names);
  if (user != nullptr) {
    environment["HOME"] = user->home;
    environment["USER"] = environment["LOGNAME"] = user->name;
  }
  if (OnGpu(assignment) && !options.cuda_compat_path.empty()) {
    std::string& libraries = environment["LD_LIBRARY_PATH"];
    libraries = WithCompatFirst(options.cuda_compat_path, libraries);
  }
  NSA_ASSIGN_OR_RETURN(const std::string cache, DataCacheOf(options, user));
  if (!cache.empty()) environment["NSA_DATA_CACHE_DIR"] = cache;
  if (options.data_cache_bytes) {
    environment["NSA_DATA_CACHE_BYTES"] = absl::StrCat(*options.data_cache_bytes);
  }
  // The token that `hf auth login` left in HOME belongs to the agent's user, not to those whose
  // jobs these are.
  environment.try_emplace("HF_TOKEN_PATH", "");
  // So do the credentials in ~/.aws, unless the job's user has a HOME.
  if (user == nullptr) environment.try_emplace("AWS_SHARED_CREDENTIALS_FILE", "");
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
  launch.set_resume_from_step(assignment.resume_from_step());
  *launch.mutable_allowed_urls() = assignment.allowed_urls();
  *launch.mutable_allowed_roots() = assignment.allowed_roots();
  launch.set_cpu_threads(ThreadsOfEach(assignment.ranks_on_node()));
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

// Command line of a process.
std::vector<std::string> ArgumentsOf(const fs::path& process) {
  const absl::StatusOr<std::string> text = ReadWholeFile(process / "cmdline");
  if (!text.ok()) return {};
  return absl::StrSplit(*text, '\0');
}

// Whether a process has this user id as its own: the number after "Uid:" in its status.
bool RunsAs(const fs::path& process, uid_t user) {
  const std::string text = ReadWholeFile(process / "status").value_or("");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
    uid_t uid = 0;
    if (words.size() > 1 && words[0] == "Uid:") {
      return absl::SimpleAtoi(words[1], &uid) && uid == user;
    }
  }
  return false;
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
                                       const UnixUser* user, const fs::path& cgroup,
                                       const AgentOptions& options) {
  NSA_RETURN_IF_ERROR(CheckAssignment(assignment));
  NSA_ASSIGN_OR_RETURN(const auto environment, EnvironmentOf(assignment, options, user));
  NSA_ASSIGN_OR_RETURN(const Fd log, MakeRunFolder(dir, LaunchOf(assignment, dir, options), user));
  if (!cgroup.empty()) NSA_RETURN_IF_ERROR(MakeCgroup(cgroup));
  const fs::path& program =
      OnGpu(assignment) ? options.cuda_worker_program : options.worker_program;
  const SpawnOptions spawn = {.argv = {program.string(), "--run-dir", dir.path.string()},
                              .environment = environment,
                              .working_dir = dir.path,
                              .output_fd = log.get()};
  ExecAs as = {.agent_program = options.agent_program, .cgroup = cgroup};
  if (user != nullptr) as.user = *user;
  const bool plain = user == nullptr && cgroup.empty();
  const absl::StatusOr<ProcessIdentity> started = plain ? Spawn(spawn) : SpawnAs(as, spawn);
  if (!started.ok()) {
    if (!cgroup.empty()) EndCgroup(cgroup);
    return started.status();
  }
  const ProcessIdentity& identity = *started;
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
  NSA_ASSIGN_OR_RETURN(const FileOwner owner, OwnerOfFolder(dir.path));
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::vector<std::string> arguments = ArgumentsOf(entry.path());
    // A process that has not become the worker yet (exec_as.h) has other arguments before, and is
    // still the agent's.
    const size_t at = arguments.size() > 1 && arguments[1] == kExecAs ? kExecAsArguments + 1 : 1;
    const bool matches = arguments.size() > at + 1 && arguments[at] == "--run-dir" &&
                         arguments[at + 1] == dir.path.string();
    if (matches && (RunsAs(entry.path(), owner.uid) || RunsAs(entry.path(), geteuid()))) {
      return IdentityOf(pid);
    }
  }
  return absl::NotFoundError(absl::StrCat("no process runs for ", dir.path.string()));
}

}  // namespace nsa::agent
