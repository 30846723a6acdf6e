#include "server/launch_check.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/preflight.h"
#include "server/lifecycle.h"
#include "server/machine_view.h"

namespace nsa::server {

namespace {

// The machine with no other GPUs than those that the job was placed on.
MachineView MachineOf(const v1::StoredJob& job, v1::NodeInfo info) {
  std::set<std::string> placed;
  for (const v1::RankPlacement& place : job.placements()) placed.insert(place.cuda_device());
  auto* gpus = info.mutable_gpus();
  gpus->erase(std::remove_if(gpus->begin(), gpus->end(),
                             [&](const v1::GpuInfo& gpu) { return !placed.contains(gpu.uuid()); }),
              gpus->end());
  return MachineViewOf(info);
}

// Rules whose verdict another hour may change without anybody touching the job: disks fill and are
// emptied, volumes are mounted, a GPU is given back by whoever used it or found again by its
// driver.
constexpr std::string_view kPassing[] = {
    "DISK_TOO_SMALL",   "OUT_DIR_NOT_WRITABLE", "DATA_UNREADABLE", "TOKENIZER_MISSING",
    "RESUME_NOT_FOUND", "GPU_UNAVAILABLE",      "GPU_COUNT",
};

// Memory that is not free now passes, memory that is not there does not.
bool MemoryIsTaken(const v1::StoredJob& job, const MachineView& machine) {
  const v1::PreflightReport report = Preflight(job.job().spec(), {.machine = &machine});
  return std::ranges::none_of(report.findings(), [](const v1::Finding& finding) {
    return finding.rule() == "MEMORY_ESTIMATE_EXCEEDED";
  });
}

bool Passes(const v1::Finding& finding, const v1::StoredJob& job, const MachineView& machine) {
  if (finding.rule() == "MEMORY_ESTIMATE_EXCEEDED") return MemoryIsTaken(job, machine);
  return std::ranges::find(kPassing, finding.rule()) != std::end(kPassing);
}

}  // namespace

LaunchCheck CheckLaunch(const v1::StoredJob& job, const Fleet& fleet, const PathGuard& paths) {
  LaunchCheck check{.accepted = true, .passing = true};
  if (const absl::Status safe = paths.CheckSpec(job.job().spec()); !safe.ok()) {
    return {.accepted = false, .problem = std::string(safe.message())};
  }
  std::set<std::string> names;
  for (const v1::RankPlacement& place : job.placements()) names.insert(place.node());
  check.nodes = absl::StrJoin(names, ", ");
  for (const std::string& name : names) {
    const std::optional<NodeView> node = fleet.Find(name);
    if (!node.has_value()) continue;
    const MachineView machine = MachineOf(job, node->info);
    const v1::PreflightReport report = Preflight(
        job.job().spec(), {.machine = &machine, .check_files = true, .job_id = job.job().id()});
    if (report.accepted()) continue;
    check.accepted = false;
    for (const v1::Finding& finding : report.findings()) {
      if (finding.severity() != v1::SEVERITY_ERROR || !finding.waived().empty()) continue;
      const bool passes = Passes(finding, job, machine);
      // What stays is told before what passes.
      if (check.problem.empty() || (check.passing && !passes)) {
        check.problem = absl::StrCat(name, ": ", finding.rule(), ": ", finding.field(), ": ",
                                     finding.problem(), "; ", finding.fix());
      }
      check.passing = check.passing && passes;
    }
  }
  check.passing = check.passing && !check.accepted;
  return check;
}

NodeSlots FreeSlots(const v1::NodeInfo& info, const std::vector<JobPtr>& active) {
  NodeSlots slots{.name = info.name(), .cpu_free = info.cpu_slots(), .cpu_total = info.cpu_slots()};
  std::set<std::string> taken;
  for (const JobPtr& job : active) {
    if (!HoldsSlots(job->job().state())) continue;
    for (const v1::RankPlacement& place : job->placements()) {
      if (place.node() != info.name()) continue;
      if (place.cuda_device().empty()) {
        --slots.cpu_free;
      } else {
        taken.insert(place.cuda_device());
      }
    }
  }
  if (!info.cuda_worker()) return slots;
  slots.gpus_total = info.gpus_size();
  std::vector<const v1::GpuInfo*> free;
  for (const v1::GpuInfo& gpu : info.gpus()) {
    if (!taken.contains(gpu.uuid())) free.push_back(&gpu);
  }
  std::ranges::stable_sort(free, std::greater<>(),
                           [](const v1::GpuInfo* gpu) { return gpu->free_bytes() >> 30; });
  for (const v1::GpuInfo* gpu : free) slots.gpus_free.push_back(gpu->uuid());
  return slots;
}

QueuedJob InQueue(const v1::StoredJob& job, bool any_gpu) {
  const v1::JobSpec& spec = job.job().spec();
  const v1::Device device = spec.runtime().device();
  return {.id = job.job().id(),
          .priority = spec.priority(),
          .order = job.queued_unix_nanos(),
          .ranks = std::max(spec.resources().gpus(), 1),
          .nodes = std::max(spec.resources().nodes(), 1),
          .cuda = device == v1::DEVICE_CUDA || (device != v1::DEVICE_CPU && any_gpu)};
}

}  // namespace nsa::server
