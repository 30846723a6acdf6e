#include "worker/agent/inventory.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/machine_memory.h"
#include "common/base/thread_name.h"
#include "common/base/version.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "common/run/rank_address.h"
#include "worker/agent/cuda_compat.h"
#include "worker/agent/nvml.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

// A job that was placed on a GPU waits for the next measurement, so this delays its start.
constexpr absl::Duration kRefresh = absl::Seconds(1);
constexpr absl::Duration kTryPatience = absl::Seconds(10);
constexpr char kNoDriver[] = "no NVIDIA driver (libnvidia-ml.so.1 was not found or does not start)";

void SetMemory(v1::NodeInfo* node) {
  const MachineMemory memory = ReadMachineMemory();
  node->set_memory_bytes(memory.total_bytes);
  node->set_free_memory_bytes(memory.free_bytes);
}

struct Trial {
  std::string problem;  // why the program cannot do it; empty if it can
  std::string said;     // what it printed, if it can
};

// Whether the program can train on a GPU (--check-gpu) or on several GPUs (--check-nccl) of this
// machine. It checks for the GPU and its libraries and prints them, or what is missing.
Trial TryProgram(const AgentOptions& options, const char* check, const fs::path& scratch) {
  const fs::path& program = options.cuda_worker_program;
  if (access(program.c_str(), X_OK) != 0) return {absl::StrCat(program.string(), " is not there")};
  std::error_code error;
  fs::remove(scratch, error);
  std::map<std::string, std::string> environment = FilterEnvironment(
      {"PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NSA_NCCL_LIBRARY"});
  if (!options.cuda_compat_path.empty()) {
    std::string& libraries = environment["LD_LIBRARY_PATH"];
    libraries = WithCompatFirst(options.cuda_compat_path, libraries);
  }
  const auto child = Spawn({.argv = {program.string(), check},
                            .environment = std::move(environment),
                            .output = scratch});
  if (!child.ok()) return {std::string(child.status().message())};
  const absl::Duration deadline = RealClock().Monotonic() + kTryPatience;
  while (true) {
    const auto exit = TryReap(child->pid);
    if (!exit.ok()) return {std::string(exit.status().message())};
    if (exit->has_value() && (*exit)->signal != 0) {
      return {absl::StrCat(program.string(), " died of signal ", (*exit)->signal)};
    }
    if (exit->has_value()) {
      const std::string output = ReadWholeFile(scratch).value_or("");
      const std::string said(absl::StripAsciiWhitespace(output));
      if ((*exit)->code == 0) return {.said = said};
      return {absl::StrCat(said, " (exit code ", (*exit)->code, ")")};
    }
    if (RealClock().Monotonic() > deadline) {
      SignalProcess(*child, SIGKILL).IgnoreError();
      while (TryReap(child->pid).value_or(ExitStatus{}) == std::nullopt) {
        absl::SleepFor(absl::Milliseconds(10));
      }
      return {absl::StrCat(program.string(), " ", check, " did not end in ",
                           absl::FormatDuration(kTryPatience))};
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
}

}  // namespace

std::vector<v1::GpuInfo> VisibleGpus(const std::vector<v1::GpuInfo>& gpus, const char* visible) {
  if (visible == nullptr) return gpus;
  std::vector<v1::GpuInfo> chosen;
  for (const absl::string_view word : absl::StrSplit(visible, ',')) {
    const absl::string_view name = absl::StripAsciiWhitespace(word);
    size_t position = 0;
    const v1::GpuInfo* found = nullptr;
    if (absl::SimpleAtoi(name, &position)) {
      if (position < gpus.size()) found = &gpus[position];
    } else if (!name.empty()) {
      for (const v1::GpuInfo& gpu : gpus) {
        if (absl::StartsWith(gpu.uuid(), name)) found = &gpu;
      }
    }
    if (found == nullptr) break;
    chosen.push_back(*found);
  }
  return chosen;
}

std::string NcclVersion(absl::string_view said) {
  const std::vector<absl::string_view> words = absl::StrSplit(said, ' ', absl::SkipEmpty());
  return words.size() >= 2 && words[0] == "NCCL" ? std::string(words[1]) : "";
}

Inventory::Inventory(const AgentOptions& options)
    : worker_(options.worker_program), cuda_worker_(options.cuda_worker_program) {
  node_.set_name(options.node_name);
  node_.set_cpu_slots(options.cpu_slots);
  node_.set_cores(UsableCores());
  node_.set_agent_version(FullVersion());
  if (NvmlIsInstalled()) {
    node_.set_cuda_problem("the NVIDIA driver has not answered yet");
    node_.set_gpus_age_seconds(-1);
  } else {
    // The first heartbeat of a machine without a driver says all that there is.
    node_.set_cuda_problem(kNoDriver);
    HashPrograms();
  }
  thread_ = std::thread([this, options] { Watch(options); });
}

Inventory::~Inventory() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
  }
  wake_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

v1::NodeInfo Inventory::Read() const {
  v1::NodeInfo node;
  {
    const MutexLock lock(&mutex_);
    node = node_;
    if (node.gpus_size() > 0) {
      node.set_gpus_age_seconds(absl::ToDoubleSeconds(RealClock().Monotonic() - measured_));
    }
  }
  SetMemory(&node);
  return node;
}

// Learns once what the driver has; the first heartbeats do not wait for that.
std::unique_ptr<Nvml> Inventory::Begin(const AgentOptions& options) {
  std::unique_ptr<Nvml> nvml = Nvml::Open();
  v1::NodeInfo found;
  if (nvml == nullptr) {
    found.set_cuda_problem(kNoDriver);
  } else {
    found.set_driver_version(nvml->DriverVersion());
    found.set_cuda_compat_path(options.cuda_compat_path);
    found.set_cuda_problem(
        TryProgram(options, "--check-gpu", options.state_dir / "cuda-worker-check").problem);
    found.set_cuda_worker(found.cuda_problem().empty());
    for (v1::GpuInfo& gpu : VisibleGpus(nvml->Gpus(), std::getenv("CUDA_VISIBLE_DEVICES"))) {
      *found.add_gpus() = std::move(gpu);
    }
    const bool works_with_others = found.gpus_size() > 1 || !options.rank_address.empty();
    if (found.cuda_worker() && works_with_others) {
      const Trial nccl = TryProgram(options, "--check-nccl", options.state_dir / "nccl-check");
      found.set_cuda_problem(nccl.problem);
      found.set_nccl_version(NcclVersion(nccl.said));
    }
  }
  const MutexLock lock(&mutex_);
  node_.clear_cuda_problem();
  node_.clear_gpus_age_seconds();
  node_.MergeFrom(found);
  measured_ = RealClock().Monotonic();
  return nvml;
}

void Inventory::HashPrograms() {
  const std::string& worker = worker_.Read();
  const std::string& cuda_worker = cuda_worker_.Read();
  const MutexLock lock(&mutex_);
  node_.set_worker_hash(worker);
  node_.set_cuda_worker_hash(cuda_worker);
}

void Inventory::ReadLink(const std::string& rank_address) {
  if (rank_address.empty()) return;
  const auto interface = InterfaceOf(rank_address);
  const int64_t speed = interface.ok() ? BitsPerSecondOf(*interface) : 0;
  const MutexLock lock(&mutex_);
  node_.set_rank_link_bits_per_second(speed);
}

void Inventory::Watch(const AgentOptions& options) {
  NameThread("inventory");
  HashPrograms();  // before the machine is known
  ReadLink(options.rank_address);
  const std::unique_ptr<Nvml> nvml = Begin(options);
  while (true) {
    {
      const MutexLock lock(&mutex_);
      if (!ending_) wake_.WaitFor(&mutex_, kRefresh);
      if (ending_) return;
    }
    HashPrograms();
    ReadLink(options.rank_address);
    if (nvml == nullptr) continue;
    const absl::Duration asked = RealClock().Monotonic();
    const std::vector<v1::GpuInfo> gpus =
        VisibleGpus(nvml->Gpus(), std::getenv("CUDA_VISIBLE_DEVICES"));
    const MutexLock lock(&mutex_);
    measured_ = asked;
    node_.clear_gpus();
    for (const v1::GpuInfo& gpu : gpus) *node_.add_gpus() = gpu;
  }
}

}  // namespace nsa::agent
