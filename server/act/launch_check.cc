#include "server/act/launch_check.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/preflight/preflight.h"
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

}  // namespace nsa::server
