// Rules about the machine: GPUs, memory, disk and the output folder.
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/count.h"
#include "common/base/job_file.h"
#include "common/base/limits.h"
#include "common/estimate/estimate.h"
#include "common/estimate/memory/memory.h"
#include "common/preflight/rules.h"
#include "common/preflight/smaller_jobs.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

Problems MoreNodesThanRanks(const PreflightFacts& facts) {
  if (facts.machines() <= facts.ranks()) return {};
  return {{"resources.nodes",
           absl::StrFormat("%d (at most resources.gpus = %d)", facts.machines(), facts.ranks()),
           absl::StrFormat("set nodes: %d, or gpus: %d", facts.ranks(), facts.machines())}};
}

Problems RankAddressMissing(const PreflightFacts& facts) {
  const MachineView* machine = facts.machine();
  if (machine == nullptr || facts.machines() == 1 || !machine->rank_address.empty()) return {};
  if (facts.machines() > facts.ranks()) return {};  // reported by MORE_NODES_THAN_RANKS
  return {
      {"resources.nodes", absl::StrCat(facts.machines(), ", but this one has no rank_address"),
       "set rank_address in agent.yaml on every machine and restart its agent, or set nodes: 1"}};
}

// "; NVIDIA A100 GPU-1… is taken out (XID 79: …)" for each such GPU.
std::string Faults(const MachineView& machine) {
  std::string text;
  for (const std::string& fault : machine.gpu_faults) absl::StrAppend(&text, "; ", fault);
  return text;
}

Problems GpuUnavailable(const PreflightFacts& facts) {
  const MachineView* machine = facts.machine();
  if (machine == nullptr || !facts.cuda()) return {};
  if (machine->gpus.empty()) {
    return {{"runtime.device",
             absl::StrCat("cuda, but the machine has no ",
                          machine->gpu_faults.empty() ? "" : "healthy ", "GPU", Faults(*machine)),
             "set device: cpu, or submit to a machine with a GPU"}};
  }
  if (machine->cuda_worker) return {};
  return {{"runtime.device",
           absl::StrFormat("cuda, but nsa-worker-cuda cannot run: %s", machine->cuda_problem.empty()
                                                                           ? "it is not installed"
                                                                           : machine->cuda_problem),
           "build with the cuda preset and install its libraries, or set device: cpu"}};
}

Problems GpuCount(const PreflightFacts& facts) {
  const MachineView* machine = facts.machine();
  if (machine == nullptr || !facts.cuda() || machine->gpus.empty()) return {};
  const int64_t wanted = facts.ranks_on_machine();
  const auto have = static_cast<int64_t>(machine->gpus.size());
  if (facts.least_ranks_on_machine() <= have) return {};
  return {{"resources.gpus",
           absl::StrFormat("%d on one machine (it has %d%s)", wanted, have, Faults(*machine)),
           absl::StrFormat("set gpus: %d, or use a machine with %d GPUs", have * facts.machines(),
                           wanted)}};
}

Problems NcclUnavailable(const PreflightFacts& facts) {
  const MachineView* machine = facts.machine();
  if (machine == nullptr || !facts.cuda() || facts.ranks() < 2) return {};
  // A missing worker is reported by GPU_UNAVAILABLE.
  if (!machine->cuda_worker || machine->cuda_problem.empty()) return {};
  return {{"resources.gpus",
           absl::StrFormat("%d, but GPUs cannot work together: %s", facts.ranks(),
                           machine->cuda_problem),
           "install libnccl2 and restart the agent, or set gpus: 1"}};
}

constexpr int kOldestCapability = 80;

// A thread block can use at least 163 KiB of shared memory on GPUs made for training, but only 99
// KiB on the others. The backward kernels for heads wider than 64 need more than that.
bool TakesNarrowHeadsOnly(int32_t capability) {
  return capability == 86 || capability == 89 || capability >= 120;
}

Problems GpuCapability(const PreflightFacts& facts) {
  if (facts.machine() == nullptr || !facts.cuda()) return {};
  const v1::ModelSpec& model = facts.spec.model();
  for (const MachineView::Gpu& gpu : facts.machine()->gpus) {
    if (TakesNarrowHeadsOnly(gpu.compute_capability) && std::max(model.d_k(), model.d_v()) > 64) {
      const bool keys = model.d_k() > 64;
      return {{keys ? "model.d_k" : "model.d_v",
               absl::StrFormat("%d (at most 64 on %s: it has 99 KiB of shared memory per block)",
                               keys ? model.d_k() : model.d_v(), gpu.name),
               "set d_k: 64 and d_v: 64, or use a GPU with 163 KiB or more (A100, H100, B200)"}};
    }
    if (gpu.compute_capability >= kOldestCapability) continue;
    return {{"runtime.device",
             absl::StrFormat("%s has compute capability %.1f (at least 8.0)", gpu.name,
                             gpu.compute_capability / 10.0),
             "use an Ampere or newer GPU, or set device: cpu"}};
  }
  return {};
}

constexpr int kOldestDriver = 580;  // CUDA 13 needs it, or the forward-compatibility package

// What to install for the branch of a driver that is too old. The package serves data-centre GPUs
// on long-term and production branches, not on new-feature branches.
std::string DriverFix(int branch) {
  const std::string update = absl::StrFormat("update the driver to %d or newer", kOldestDriver);
  if (branch == 535) {
    return absl::StrCat(
        "on data-centre GPUs install NVIDIA's package cuda-compat-13-0 on the "
        "machine and restart its agent (R535 is a long-term branch, which it "
        "serves); otherwise ",
        update);
  }
  if (branch == 555) {
    return absl::StrCat(update,
                        " (R555 is a new-feature branch, which the package "
                        "cuda-compat-13-0 does not serve), or move to R535 and install "
                        "that package");
  }
  return absl::StrCat(update, "; on data-centre GPUs the package cuda-compat-13-0 may serve R",
                      branch, ": see the table in NVIDIA's CUDA Compatibility document");
}

Problems GpuDriver(const PreflightFacts& facts) {
  if (facts.machine() == nullptr || !facts.cuda()) return {};
  const std::string& version = facts.machine()->driver_version;
  int major = 0;
  if (!absl::SimpleAtoi(version.substr(0, version.find('.')), &major) || major >= kOldestDriver) {
    return {};
  }
  // nsa-worker-cuda --check-gpu has run with it.
  if (!facts.machine()->cuda_compat_path.empty()) return {};
  return {{"runtime.device",
           absl::StrFormat("NVIDIA driver %s (%d or newer)", version, kOldestDriver),
           DriverFix(major)}};
}

Problems CpuSlots(const PreflightFacts& facts) {
  const MachineView* machine = facts.machine();
  if (machine == nullptr || facts.cuda() || machine->cpu_slots == 0) return {};
  if (facts.least_ranks_on_machine() <= machine->cpu_slots) return {};
  return {{"resources.gpus",
           absl::StrFormat("%d CPU ranks on one machine (it has %d slots)",
                           facts.ranks_on_machine(), machine->cpu_slots),
           absl::StrFormat("set gpus: %d, or raise cpu_slots of the agent",
                           machine->cpu_slots * facts.machines())}};
}

// Memory that a job can use. A job without an id may wait until other jobs end, so all memory
// counts. A job with an id is about to start, so only free memory counts.
int64_t Usable(const PreflightFacts& facts, int64_t free, int64_t all) {
  const bool starts = !facts.context.job_id.empty();
  return starts && free > 0 ? free : all;
}

int64_t UsableHostMemory(const PreflightFacts& facts) {
  return Usable(facts, facts.machine()->free_memory_bytes, facts.machine()->memory_bytes);
}

// Whether the text of each rank does not fit, whatever the model.
bool TextExceedsMemory(const PreflightFacts& facts) {
  const int64_t memory = UsableHostMemory(facts);
  return memory > 0 && CorpusMemory(facts) > memory / facts.ranks_on_machine();
}

Problems MemoryExceeded(const PreflightFacts& facts) {
  if (facts.machine() == nullptr) return {};
  const int64_t memory = MemoryOfRank(facts);
  const std::vector<MemoryItem> items = RankMemory(facts);
  if (memory == 0 || TotalBytes(items) <= memory) return {};
  // On the CPU the text is part of this estimate; no smaller model makes room for it.
  if (!facts.cuda() && TextExceedsMemory(facts)) return {};
  std::vector<MemoryItem> largest = items;
  std::sort(largest.begin(), largest.end(),
            [](const MemoryItem& a, const MemoryItem& b) { return a.bytes > b.bytes; });
  std::vector<std::string> parts;
  for (const MemoryItem& item : largest) {
    parts.push_back(absl::StrCat(item.name, " ", Bytes(static_cast<double>(item.bytes))));
  }
  return {{"train.batch_size",
           absl::StrFormat("about %s per rank (at most %s): %s",
                           Bytes(static_cast<double>(TotalBytes(items))),
                           Bytes(static_cast<double>(memory)), absl::StrJoin(parts, ", ")),
           WhatWouldFit(facts, facts.cuda() ? memory : memory - CorpusMemory(facts))}};
}

// Ranks on GPUs start from copies in host memory, and write checkpoints from others; on the CPU
// these are part of the estimate of MemoryExceeded().
Problems CopiesExceedMemory(const PreflightFacts& facts) {
  const int64_t memory = UsableHostMemory(facts), ranks = facts.ranks_on_machine();
  const int64_t text = ranks * CorpusMemory(facts);
  const int64_t copies = std::max(SnapshotBytes(facts.spec, ranks), StartBytes(facts.spec, ranks));
  if (!facts.cuda() || memory == 0 || text + copies <= memory) return {};
  const std::string beside =
      text > 0 ? absl::StrFormat(", and %s for their %s", Bytes(static_cast<double>(text)),
                                 facts.spec.data().stream() ? "windows" : "text")
               : "";
  return {{"resources.gpus",
           absl::StrFormat("about %s of host memory for the copies with which %s %s checkpoints%s "
                           "(at most %s in all)",
                           Bytes(static_cast<double>(copies)), Count(ranks, "rank"),
                           ranks == 1 ? "starts and writes" : "start and write", beside,
                           Bytes(static_cast<double>(memory))),
           "divide the ranks among more machines, or use more memory or a smaller model"}};
}

Problems HostMemoryExceeded(const PreflightFacts& facts) {
  if (facts.machine() == nullptr) return {};
  if (!TextExceedsMemory(facts)) return CopiesExceedMemory(facts);
  const bool streams = facts.spec.data().stream();
  return {{"data.path",
           absl::StrFormat("about %s of host memory for the %s in each of %s (at most %s in all)",
                           Bytes(static_cast<double>(CorpusMemory(facts))),
                           streams ? "window" : "text", Count(facts.ranks_on_machine(), "rank"),
                           Bytes(static_cast<double>(UsableHostMemory(facts)))),
           streams ? "use a smaller data.shuffle_window, fewer ranks, or more memory"
                   : "prepare or stream the data, use less of it or fewer ranks, or more memory"}};
}

// The nearest folder above `path` that exists, as far as the user may know.
std::filesystem::path ExistingAncestor(std::filesystem::path path) {
  std::error_code error;
  const auto exists = [&] {
    const std::filesystem::path real = std::filesystem::canonical(path, error);
    return !error && JobPathExists(path) && JobPathExists(real);
  };
  while (!exists() && path.has_parent_path() && path != path.parent_path()) {
    path = path.parent_path();
  }
  return path;
}

bool HasOutDir(const PreflightFacts& facts) {
  return facts.context.check_files && facts.spec.train().out_dir().starts_with('/');
}

std::optional<int64_t> FreeDiskBytes(const std::string& folder) {
  struct statvfs info = {};
  if (statvfs(folder.c_str(), &info) != 0) return std::nullopt;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

Problems DiskTooSmall(const PreflightFacts& facts) {
  if (!HasOutDir(facts)) return {};
  const std::filesystem::path folder = ExistingAncestor(facts.spec.train().out_dir());
  const auto& probe = facts.context.free_disk_bytes;
  const std::optional<int64_t> free =
      probe ? probe(folder.string()) : FreeDiskBytes(folder.string());
  if (!free.has_value()) return {};
  const int64_t checkpoints = facts.spec.train().keep_checkpoints() + 1;
  const double wanted = DiskForCheckpoints(facts.spec);
  if (wanted <= static_cast<double>(*free)) return {};
  return {{"train.out_dir",
           absl::StrFormat("%s free on %s (%s needed for %d checkpoints of %s%s)",
                           Bytes(static_cast<double>(*free)), folder.string(), Bytes(wanted),
                           checkpoints, Bytes(static_cast<double>(CheckpointBytes(facts.spec))),
                           facts.ranks() > 1 ? " and what ranks hand over to rank 0" : ""),
           "free some space, choose another out_dir, or keep fewer checkpoints"}};
}

Problems OutDirNotWritable(const PreflightFacts& facts) {
  if (!HasOutDir(facts)) return {};
  const std::filesystem::path folder = ExistingAncestor(facts.spec.train().out_dir());
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return {{"train.out_dir", absl::StrFormat("%s is not a folder", folder.string()),
             "choose another out_dir"}};
  }
  if (facts.as_another_user() || access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return {{"train.out_dir", absl::StrFormat("%s is not writable", folder.string()),
           "change its permissions or choose another out_dir"}};
}

Problems OutDirTaken(const PreflightFacts& facts) {
  if (!HasOutDir(facts)) return {};
  const std::filesystem::path file =
      std::filesystem::path(facts.spec.train().out_dir()) / "owner.json";
  const absl::StatusOr<std::string> content = ReadJobFile(file, limits::kOwnerFileBytes);
  // Of a file that is not there, or that may not be read, the worker says more.
  if (!content.ok() && !absl::IsInvalidArgument(content.status())) return {};
  const nlohmann::json owner =
      nlohmann::json::parse(content.value_or(""), nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* key) {
    const bool there = owner.is_object() && owner.contains(key) && owner[key].is_string();
    return there ? owner[key].get<std::string>() : std::string();
  };
  const std::string job = text("job_id");
  if (owner.is_object() && job == facts.context.job_id) return {};
  return {{"train.out_dir",
           job.empty() ? absl::StrFormat("%s belongs to a run without a coordinator, or cannot be "
                                         "read",
                                         file.string())
                       : absl::StrFormat("belongs to job %s", job),
           job.empty()
               ? "choose another out_dir, or remove that file after its run has ended"
               : absl::StrFormat("choose another out_dir, or run `nsactl resume %s`; if that job "
                                 "was deleted, remove %s",
                                 job, file.string())}};
}

constexpr PreflightRule kMachineRules[] = {
    {"MORE_NODES_THAN_RANKS", "more machines than ranks", kError, kError, false, kNothing,
     MoreNodesThanRanks},
    {"RANK_ADDRESS_MISSING", "several machines, and none knows at which address ranks reach it",
     kError, kError, false, kNothing, RankAddressMissing},
    {"GPU_UNAVAILABLE", "the machine has no GPU or no CUDA worker", kError, kError, false, kNothing,
     GpuUnavailable, kMayPass},
    {"GPU_COUNT", "more ranks than the machine has GPUs", kError, kError, false, kNothing, GpuCount,
     kMayPass},
    {"NCCL_UNAVAILABLE", "several GPUs, but no NCCL on the machine", kError, kError, false,
     kNothing, NcclUnavailable},
    {"GPU_CAPABILITY", "a GPU older than compute capability 8.0, or too small for wide heads",
     kError, kError, false, kNothing, GpuCapability},
    {"GPU_DRIVER", "an NVIDIA driver older than CUDA 13 needs", kError, kError, true, kNothing,
     GpuDriver},
    {"CPU_SLOTS", "more CPU ranks than the machine has slots", kError, kError, false, kNothing,
     CpuSlots},
    {"MEMORY_ESTIMATE_EXCEEDED", "the estimate exceeds the memory", kError, kError, true, kSizes,
     MemoryExceeded, MayPass::kOnceMemoryIsFree},
    {"HOST_MEMORY_EXCEEDED",
     "text and, of ranks on GPUs, what checkpoints are written from exceed the host memory", kError,
     kError, true, kSizes, HostMemoryExceeded, MayPass::kOnceMemoryIsFree},
    {"DISK_TOO_SMALL", "too little disk space for all kept checkpoints and one more", kError,
     kError, true, kSizes, DiskTooSmall, kMayPass},
    {"OUT_DIR_NOT_WRITABLE", "out_dir is not writable", kError, kError, false, kNothing,
     OutDirNotWritable, kMayPass},
    {"OUT_DIR_TAKEN", "out_dir belongs to another job", kError, kError, false, kNothing,
     OutDirTaken},
};

}  // namespace

std::span<const PreflightRule> MachineRules() { return kMachineRules; }

int64_t MemoryOfRank(const PreflightFacts& facts) {
  const MachineView& machine = *facts.machine();
  if (!facts.cuda()) return UsableHostMemory(facts) / facts.ranks_on_machine();
  std::vector<int64_t> memory;
  for (const MachineView::Gpu& gpu : machine.gpus) {
    memory.push_back(Usable(facts, gpu.free_bytes, gpu.memory_bytes));
  }
  const auto wanted = static_cast<size_t>(facts.ranks_on_machine());
  if (memory.size() < wanted) return 0;  // GPU_COUNT reports it
  std::sort(memory.begin(), memory.end(), std::greater<>());
  return memory[wanted - 1];
}

namespace {

// What a rank can have of its GPU; 0 on the CPU, or if no machine is known.
int64_t GpuMemory(const PreflightFacts& facts) {
  return facts.cuda() && facts.machine() != nullptr ? MemoryOfRank(facts) : 0;
}

}  // namespace

std::vector<MemoryItem> RankMemory(const PreflightFacts& facts) {
  std::vector<MemoryItem> items =
      MemoryEstimate(facts.spec, RecomputeOf(facts.spec, GpuMemory(facts)));
  const int64_t corpus = facts.cuda() ? 0 : CorpusMemory(facts);
  if (corpus > 0) items.push_back({"corpus", corpus});
  return items;
}

namespace {

struct Device {
  std::string name;  // "cpu", or a GPU's
  int cores = 0;
};

// What the job is expected to run on.
Device DeviceOf(const PreflightFacts& facts) {
  const MachineView* machine = facts.machine();
  if (!facts.cuda()) {
    const int64_t cores = machine != nullptr ? machine->cores : facts.ranks_on_machine();
    return {"cpu", static_cast<int>(cores * facts.machines())};
  }
  const bool known = machine != nullptr && !machine->gpus.empty();
  return {known ? machine->gpus[0].name : "A100"};
}

}  // namespace

double ExpectedSpeed(const PreflightFacts& facts) {
  const Device device = DeviceOf(facts);
  return ExpectedTokensPerSecond(facts.spec, device.name, device.cores, GpuMemory(facts));
}

std::string ExpectedSpeedSource(const PreflightFacts& facts) {
  const Device device = DeviceOf(facts);
  return absl::StrCat(facts.machine() == nullptr ? "machine unknown; " : "",
                      SpeedSource(device.name, device.cores));
}

double TokensOfRun(const PreflightFacts& facts) {
  return static_cast<double>(TokensPerStep(facts.spec)) *
         static_cast<double>(facts.spec.train().steps());
}

double ExpectedStepSeconds(const PreflightFacts& facts) {
  return static_cast<double>(TokensPerStep(facts.spec)) / ExpectedSpeed(facts);
}

double ExpectedSeconds(const PreflightFacts& facts) {
  return static_cast<double>(StepsLeft(facts)) * ExpectedStepSeconds(facts);
}

double ExpectedSecondsOfAll(const PreflightFacts& facts) {
  return static_cast<double>(facts.spec.train().steps()) * ExpectedStepSeconds(facts);
}

}  // namespace nsa
