// nsa-worker: trains on one rank. See README.md beside this file.
#include <sys/prctl.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/clock.h"
#include "common/base/current_folder.h"
#include "common/base/job_file.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/base/version.h"
#include "common/estimate/state_title.h"
#include "common/job/known.h"
#include "common/job/load.h"
#include "common/preflight/preflight.h"
#include "common/run/out_of_memory.h"
#include "common/run/rank_address.h"
#include "kernels/cuda/device.h"
#include "worker/train/comm/nccl_library.h"
#include "worker/train/command_line.h"
#include "worker/train/data/cache/cache_options.h"
#include "worker/train/gpu/gpu.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/step/ending.h"
#include "worker/train/step/signals.h"
#include "worker/train/step/stack_signal.h"
#include "worker/train/step/trainer.h"
#include "worker/train/use.h"

namespace nsa::train {
namespace {

struct Flags {
  std::string run_dir;
  std::string job;
  int rank = 0;
  int world = 1;
  std::string rendezvous;
  std::string rank_address;
  std::string rank_ports;
  std::string out_dir;
  int threads = 0;
  bool check_gpu = false;
  bool check_nccl = false;
  bool time_kernels = false;
  std::string profile;
  bool deterministic_check = false;
  UseFlags use;
};

absl::StatusOr<v1::WorkerLaunch> ReadLaunch(const RunDir& run_dir) {
  std::ifstream in(run_dir.launch(), std::ios::binary);
  v1::WorkerLaunch launch;
  if (!in || !launch.ParseFromIstream(&in)) {
    return absl::InvalidArgumentError(absl::StrCat("--run-dir: ", run_dir.launch().string(),
                                                   " (must be a launch.pb); use --job by hand"));
  }
  // A newer coordinator may send fields that this worker does not know and would silently ignore.
  NSA_RETURN_IF_ERROR(CheckKnown(launch.spec(), "spec"));
  return launch;
}

// Runs the preflight rules that the coordinator would run, except those about the machine.
absl::Status CheckByHand(const Flags& flags, const JobFile& file) {
  v1::JobSpec spec = file.spec;
  spec.mutable_resources()->set_gpus(flags.world);
  v1::PreflightReport report = Preflight(spec, {.check_files = true});
  AddPlaces(file.source.places, &report);
  if (report.accepted()) {
    for (const v1::Finding& finding : report.findings()) {
      if (finding.severity() != v1::SEVERITY_WARNING || flags.rank != 0) continue;
      spdlog::warn("{}: {}: {}; {}", finding.rule(), finding.field(), finding.problem(),
                   finding.fix());
    }
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(flags.job, ": refused by preflight\n", FormatReport(report, flags.job)));
}

// Makes a launch from a job file, without a coordinator.
absl::StatusOr<v1::WorkerLaunch> LaunchByHand(const Flags& flags) {
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path here, CurrentFolder());
  NSA_ASSIGN_OR_RETURN(JobFile file, LoadJobFile(flags.job, here));
  for (const LegacyKey& key : file.source.legacy) {
    spdlog::warn("{}:{}: {}: {}", flags.job, key.place.line, key.field, key.why);
  }
  ApplyDefaults(&file.spec);
  ResolveDevice(cuda::DeviceCount() > 0, &file.spec);
  if (flags.world > 1 && file.spec.runtime().shard() == v1::SHARD_AUTO) {
    return absl::InvalidArgumentError(
        "runtime.shard: auto by hand (the coordinator decides it, which knows the memory of all "
        "ranks); name a level: none, optimizer, gradients or parameters");
  }
  std::string* out_dir = file.spec.mutable_train()->mutable_out_dir();
  if (!flags.out_dir.empty()) *out_dir = (here / flags.out_dir).string();
  if (flags.world > 1 && flags.rendezvous.empty()) {
    return absl::InvalidArgumentError(
        "--rendezvous: none (a folder that all ranks share, with --world above 1); name an empty "
        "one");
  }
  if (!flags.deterministic_check) NSA_RETURN_IF_ERROR(CheckByHand(flags, file));
  v1::WorkerLaunch launch;
  *launch.mutable_spec() = std::move(file.spec);
  launch.set_generation(1);
  launch.set_rank(flags.rank);
  launch.set_world_size(flags.world);
  launch.set_rendezvous_dir(flags.rendezvous);
  launch.set_rank_address(flags.rank_address);
  launch.set_rank_ports(flags.rank_ports);
  launch.set_cpu_threads(flags.threads);
  launch.add_allowed_urls("*");  // started by hand: only the user's own permissions count
  return launch;
}

int CheckDeterminism(TrainerOptions options) {
  Trainer trainer(std::move(options));
  const absl::StatusOr<std::string> checked = trainer.CheckDeterminism();
  (checked.ok() ? std::cout : std::cerr)
      << (checked.ok() ? *checked : std::string(checked.status().message())) << "\n";
  return checked.ok() ? 0 : 1;
}

// Trains. SIGTERM and SIGINT stop the run after the step in progress, with a checkpoint.
int Train(TrainerOptions options) {
  const bool on_gpu = options.launch.spec().runtime().device() == v1::DEVICE_CUDA;
  const bool reporting = options.launch.rank() == 0;  // rank 0's reporter logs the end
  Trainer trainer(std::move(options));
  const SignalWatch watch([&trainer](int signal) {
    spdlog::info("{}: stopping after the step in progress", strsignal(signal));
    v1::StopRequest stop;
    stop.set_mode(v1::STOP_MODE_GRACEFUL);
    trainer.RequestStop(stop).IgnoreError();
  });
  const v1::WorkerFinished finished = trainer.Run();
  if (!reporting) spdlog::info("{}", EndText(finished));
  const int code = ExitCodeOf(finished.outcome());
  if (code != 0 && on_gpu) {
    // Freeing GPU memory would wait for kernels that may never end. The driver frees it anyway.
    spdlog::shutdown();
    std::_Exit(code);
  }
  return code;
}

// Where this rank listens. NCCL, which begins later, uses the same interface.
absl::StatusOr<ListenAt> ListenOf(const v1::WorkerLaunch& launch) {
  ListenAt at;
  if (launch.rank_address().empty()) return at;
  at.host = launch.rank_address();
  const absl::StatusOr<std::string> interface = InterfaceOf(at.host);
  NSA_RETURN_IF_ERROR(Annotate(interface.status(), "rank address"));
  if (!launch.rank_ports().empty()) {
    const absl::StatusOr<PortRange> ports = ParsePortRange(launch.rank_ports());
    NSA_RETURN_IF_ERROR(Annotate(ports.status(), "rank ports"));
    at.first_port = ports->first;
    at.last_port = ports->last;
  }
  nccl::UseInterface(*interface);
  return at;
}

// What the job names lies beneath allowed_roots; the cache is the agent's.
absl::Status LimitFiles(const v1::WorkerLaunch& launch) {
  if (launch.allowed_roots().empty()) return absl::OkStatus();
  std::vector<std::filesystem::path> roots(launch.allowed_roots().begin(),
                                           launch.allowed_roots().end());
  NSA_ASSIGN_OR_RETURN(const CacheOptions cache, CacheFromEnvironment());
  if (!cache.folder.empty()) roots.push_back(cache.folder.lexically_normal());
  LimitJobFiles(std::move(roots));
  return absl::OkStatus();
}

int TrainFrom(const Flags& flags) {
  ExitWhenMemoryIsRefused();
  const RealClock clock;
  TrainerOptions options{
      .clock = &clock, .time_kernels = flags.time_kernels, .profile_file = flags.profile};
  if (flags.run_dir.empty()) {
    absl::StatusOr<v1::WorkerLaunch> launch = LaunchByHand(flags);
    if (!launch.ok()) return Refuse(launch.status());
    options.launch = *std::move(launch);
  } else {
    options.run_dir = RunDir{flags.run_dir};
    absl::StatusOr<v1::WorkerLaunch> launch = ReadLaunch(*options.run_dir);
    if (!launch.ok()) return Refuse(launch.status());
    options.launch = *std::move(launch);
    if (const absl::Status limited = LimitFiles(options.launch); !limited.ok()) {
      return Refuse(limited);
    }
  }
  const absl::StatusOr<ListenAt> listen = ListenOf(options.launch);
  if (!listen.ok()) return Refuse(listen.status());
  options.listen = *listen;
  return flags.deterministic_check ? CheckDeterminism(std::move(options))
                                   : Train(std::move(options));
}

int CheckGpu() {
  const auto gpu = Gpu::Open();
  if (absl::IsResourceExhausted(gpu.status())) {  // the GPU works, but others use it
    std::cout << gpu.status().message() << "\n";
    return 0;
  }
  if (!gpu.ok()) {
    std::cerr << ProgramName() << ": " << gpu.status().message() << "\n";
    return 1;
  }
  std::cout << (*gpu)->Description() << "\n";
  return 0;
}

int CheckNccl() {
  const char* const file = std::getenv("NSA_NCCL_LIBRARY");
  const auto library = nccl::Load(file == nullptr ? "" : file);
  if (!library.ok()) {
    std::cerr << ProgramName() << ": " << library.status().message() << "\n";
    return 1;
  }
  std::cout << library->description() << "\n";
  return 0;
}

// The flags of training.
void AddTraining(CLI::App* app, Flags* flags) {
  auto* run_dir =
      app->add_option("--run-dir", flags->run_dir, "run folder with launch.pb, made by the agent");
  auto* job = app->add_option("--job", flags->job, "job file, to train without a coordinator");
  app->add_option("--rank", flags->rank, "this rank, with --job")->needs(job);
  app->add_option("--world", flags->world, "number of ranks, with --job")->needs(job);
  app->add_option("--rendezvous", flags->rendezvous, "empty folder in which the ranks meet")
      ->needs(job);
  auto* rank_address =
      app->add_option("--rank-address", flags->rank_address,
                      "this machine's address at which the other ranks reach this one; "
                      "default: 127.0.0.1, for ranks on one machine")
          ->needs(job);
  app->add_option("--rank-ports", flags->rank_ports,
                  "ports to listen at, as 29500-29599; default: any free one")
      ->needs(rank_address);
  app->add_option("--out-dir", flags->out_dir, "instead of the job's train.out_dir")->needs(job);
  app->add_flag("--deterministic-check", flags->deterministic_check,
                "do the job's first step several times, compare the bits, and end")
      ->needs(job);
  app->add_flag("--time-kernels", flags->time_kernels,
                "on a GPU: print the time of every kernel family in the last step")
      ->needs(job);
  app->add_option("--profile", flags->profile,
                  "file: write a trace of three early steps there, for https://ui.perfetto.dev; "
                  "with --world above 1 every rank needs one")
      ->needs(job);
  app->add_option("--threads", flags->threads, "kernel threads; 0 shares the cores")
      ->excludes(run_dir);
  job->excludes(run_dir);
}

int Main(int argc, char** argv) {
  CLI::App app("Trains a language model with Native Sparse Attention, one rank a process.");
  Flags flags;
  AddTraining(&app, &flags);
  app.add_flag("--check-gpu", flags.check_gpu,
               "say which GPU and libraries there are, or what is missing, and end");
  app.add_flag("--check-nccl", flags.check_nccl,
               "say which NCCL there is for jobs on several GPUs, or what is missing, and end");
  AddUse(&app, &flags.use);
  app.set_version_flag("--version", absl::StrCat(ProgramName(), " ", FullVersion()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (flags.use.command != nullptr) {
    for (const CLI::Option* flag : app.get_options()) {
      if (flag->count() == 0) continue;
      return Refuse(absl::InvalidArgumentError(
          absl::StrCat(flag->get_name(), " (is not of a command); leave it out")));
    }
    return Use(flags.use);
  }
  if (flags.check_gpu) return CheckGpu();
  if (flags.check_nccl) return CheckNccl();
  if (flags.run_dir.empty() && flags.job.empty()) {
    return Refuse(absl::InvalidArgumentError("--job, --run-dir or a command (none); see --help"));
  }
  return TrainFrom(flags);
}

}  // namespace
}  // namespace nsa::train

int main(int argc, char** argv) {
  nsa::train::BlockSignals();  // first: the default action of SIGUSR1 would end the process
  nsa::train::PrepareLibraries(argv);
  nsa::NameThread("nsa-worker");  // PrepareLibraries() executes /proc/self/exe: named "exe"
  nsa::train::nccl::SetEnvironment();
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // lets the agent read the stacks
  if (const absl::Status status = nsa::InitLog(nsa::train::ProgramName()); !status.ok()) {
    return nsa::train::Refuse(status);
  }
  if (const absl::Status status = nsa::train::CheckProcessor(); !status.ok()) {
    return nsa::train::Refuse(status);
  }
  const nsa::train::StackSignal stacks;
  return nsa::train::Main(argc, argv);
}
