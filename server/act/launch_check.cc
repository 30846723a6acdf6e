#include "server/act/launch_check.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/preflight/preflight.h"
#include "common/rpc/cordon_text.h"
#include "server/decide/lifecycle.h"
#include "server/decide/machine_view.h"

namespace nsa::server {

namespace {

// The machine with only those GPUs that the job was placed on.
MachineView MachineOf(const v1::StoredJob& job, v1::NodeInfo info) {
  std::set<std::string> placed;
  for (const v1::RankPlacement& place : job.placements()) placed.insert(place.cuda_device());
  auto* gpus = info.mutable_gpus();
  gpus->erase(std::remove_if(gpus->begin(), gpus->end(),
                             [&](const v1::GpuInfo& gpu) { return !placed.contains(gpu.uuid()); }),
              gpus->end());
  return MachineViewOf(info);
}

}  // namespace

LaunchCheck CheckLaunch(const v1::StoredJob& job, const Fleet& fleet, const PathGuard& paths) {
  LaunchCheck check{.accepted = true, .passing = true};
  if (const absl::Status safe = paths.CheckSpec(job.job().spec()); !safe.ok()) {
    return {.accepted = false, .problem = std::string(safe.message())};
  }
  const auto real = paths.RealOutDir(job.job().spec().train().out_dir());
  if (!real.ok()) {
    return {.accepted = false, .problem = std::string(real.status().message()), .passing = true};
  }
  if (!job.out_dir_real().empty() && *real != job.out_dir_real()) {
    return {.accepted = false,
            .problem = absl::StrCat("train.out_dir: ", job.job().spec().train().out_dir(),
                                    " leads to ", *real, " now (", job.out_dir_real(),
                                    " when it was submitted); put its links back, or submit again"),
            .passing = true};
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
      const bool passes = MayPassLater(finding, job.job().spec(), machine);
      // A problem that stays is reported rather than one that may go away.
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

v1::PreflightReport CheckSubmit(v1::JobSpec spec, const Fleet& fleet, const Cordons& cordons,
                                const std::vector<std::string>& provisioners,
                                const std::function<bool()>& abandoned) {
  const bool own_machines = !spec.resources().provisioner().empty();
  std::vector<MachineView> machines;
  for (const NodeView& node : fleet.Nodes()) {
    if (own_machines || !node.info.allocation().empty()) continue;
    if (node.state != RankView::Node::kReady || !KnowsItsGpus(node.info)) continue;
    machines.push_back(MachineViewOf(node.info));
    const auto cordon = cordons.find(node.info.name());
    if (cordon == cordons.end()) continue;
    machines.back().cordon = absl::StrCat(node.info.name(), " is ", CordonText(cordon->second));
  }
  const bool any_gpu = std::ranges::any_of(machines, [](const MachineView& machine) {
    return !machine.gpus.empty() && machine.cuda_worker;
  });
  if (!machines.empty()) ResolveDevice(any_gpu, &spec);
  return Preflight(spec, {.machine = BestMachine(spec, machines),
                          .check_files = true,
                          .job_id = "",
                          .abandoned = abandoned,
                          .provisioners = &provisioners});
}

}  // namespace nsa::server
