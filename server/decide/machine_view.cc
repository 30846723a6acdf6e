#include "server/decide/machine_view.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace nsa::server {
namespace {

int64_t Errors(const v1::JobSpec& spec, const MachineView& machine) {
  const v1::PreflightReport report = Preflight(spec, {.machine = &machine});
  return std::count_if(
      report.findings().begin(), report.findings().end(), [](const v1::Finding& finding) {
        return finding.severity() == v1::SEVERITY_ERROR && finding.waived().empty();
      });
}

}  // namespace

MachineView MachineViewOf(const v1::NodeInfo& info) {
  MachineView view;
  for (const v1::GpuInfo& gpu : info.gpus()) {
    if (!gpu.fault().empty()) continue;
    view.gpus.push_back({.name = gpu.name(),
                         .memory_bytes = gpu.memory_bytes(),
                         .free_bytes = gpu.free_bytes(),
                         .compute_capability = gpu.compute_capability(),
                         .link_bytes_per_second =
                             std::max(gpu.nvlink_bytes_per_second(), gpu.pcie_bytes_per_second()),
                         .nvlink = gpu.nvlink_bytes_per_second() > 0});
  }
  for (auto& [uuid, text] : FaultyGpus(info)) view.gpu_faults.push_back(std::move(text));
  view.cpu_slots = info.cpu_slots();
  view.cores = info.cores();
  view.memory_bytes = info.memory_bytes();
  view.free_memory_bytes = info.free_memory_bytes();
  view.cuda_worker = info.cuda_worker();
  view.cuda_problem = info.cuda_problem();
  view.driver_version = info.driver_version();
  view.cuda_compat_path = info.cuda_compat_path();
  view.rank_address = info.rank_address();
  view.rank_link_bits_per_second = info.rank_link_bits_per_second();
  view.unix_users = info.unix_users();
  return view;
}

std::map<std::string, std::string> FaultyGpus(const v1::NodeInfo& info) {
  std::map<std::string, std::string> faulty;
  for (const v1::GpuInfo& gpu : info.gpus()) {
    if (gpu.fault().empty()) continue;
    faulty[gpu.uuid()] =
        absl::StrCat(gpu.name(), " ", gpu.uuid(), " is taken out (", gpu.fault(), ")");
  }
  return faulty;
}

std::vector<std::string> RanksOnFaultyGpus(const v1::StoredJob& job,
                                           const std::map<std::string, std::string>& faulty) {
  std::vector<std::string> texts;
  for (const v1::RankPlacement& rank : job.placements()) {
    const auto found = faulty.find(rank.cuda_device());
    if (found == faulty.end()) continue;
    texts.push_back(absl::StrCat(
        "rank ", rank.rank(), " on ", rank.node(), ": ", found->second,
        ": it gets no other rank, and this one may compute wrongly; stop the job and resume it, so "
        "that it continues from its last checkpoint on another GPU"));
  }
  return texts;
}

const MachineView* BestMachine(const v1::JobSpec& spec, std::span<const MachineView> machines) {
  const MachineView* best = nullptr;
  std::tuple<int64_t, bool, size_t, int64_t> best_rank;
  for (const MachineView& machine : machines) {
    const std::tuple rank(-Errors(spec, machine), machine.cordon.empty(), machine.gpus.size(),
                          machine.memory_bytes);
    if (best != nullptr && rank <= best_rank) continue;
    best = &machine;
    best_rank = rank;
  }
  return best;
}

}  // namespace nsa::server
