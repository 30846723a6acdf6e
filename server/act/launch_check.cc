#include "server/act/launch_check.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/preflight/preflight.h"
#include "common/rpc/cordon_text.h"
#include "server/decide/lifecycle.h"
#include "server/decide/machine_view.h"
#include "server/decide/machines/alike.h"
#include "server/decide/queue/start.h"
#include "server/decide/scheduler.h"

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

// For a multi-machine job: records how the machines differ, unless at least `needed` of them are
// alike.
void AddDifferences(const v1::JobSpec& spec, const std::vector<Makeup>& machines, size_t needed,
                    PreflightContext* context) {
  if (machines.size() < needed) return;
  const bool cuda = spec.runtime().device() == v1::DEVICE_CUDA;
  const auto suffice = [&](const Demand& demand) {
    return Groups(machines, demand).front().size() >= needed;
  };
  const Demand programs = {.cuda = cuda, .clocks = false};
  const Demand clocks = {.cuda = cuda, .programs = DemandOf(spec, cuda).programs};
  if (!suffice(programs)) context->programs_differ = DifferencesOf(machines, programs);
  if (context->programs_differ.text.empty() || !clocks.programs) {
    if (!suffice(clocks)) context->clocks_differ = DifferencesOf(machines, clocks);
  }
}

// The machines on which a submitted multi-machine job can run ranks.
std::vector<Makeup> Suiting(const v1::JobSpec& spec, const std::vector<NodeView>& ready,
                            bool has_unix_user) {
  const int64_t nodes = std::max(spec.resources().nodes(), 1);
  const int64_t share = (spec.resources().gpus() + nodes - 1) / nodes;
  const bool cuda = spec.runtime().device() == v1::DEVICE_CUDA;
  std::vector<Makeup> suiting;
  for (const NodeView& node : ready) {
    const NodeSlots slots = FreeSlots(node.info, {});
    if (slots.unix_users && !has_unix_user) continue;
    if (!Meets(RequirementsOf(spec), slots.attributes)) continue;
    if (!slots.has_rank_address || (cuda ? slots.gpus_total : slots.cpu_total) < share) continue;
    suiting.push_back(MakeupOf(node.info, node.clock_offset));
  }
  return suiting;
}

}  // namespace

LaunchCheck CheckLaunch(const v1::StoredJob& job, const Fleet& fleet, const PathGuard& paths,
                        const WorkBudget& work) {
  LaunchCheck check{.accepted = true, .passing = true};
  const auto over = [&work] { return work.Over(); };
  const JobFileScope files(paths.FilesOf(job.job().unix_user(), over));
  if (const absl::Status safe = paths.CheckSpec(job.job().spec()); !safe.ok()) {
    return {.accepted = false,
            .problem = std::string(work.Over() ? work.Check().message() : safe.message()),
            .passing = work.Over()};
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
  std::vector<NodeView> nodes = fleet.Nodes();
  std::erase_if(nodes, [&](const NodeView& node) { return !names.contains(node.info.name()); });
  const v1::JobSpec spec = SpecOfStart(job);
  PreflightContext context = {.check_files = true,
                              .job_id = job.job().id(),
                              .restarted = job.job().generation() > 0,
                              .abandoned = over};
  std::vector<Makeup> makeups;
  for (const NodeView& node : nodes) makeups.push_back(MakeupOf(node.info, node.clock_offset));
  if (nodes.size() > 1) AddDifferences(spec, makeups, nodes.size(), &context);
  for (const NodeView& node : nodes) {
    const std::string& name = node.info.name();
    const MachineView machine = MachineOf(job, node.info);
    context.machine = &machine;
    const v1::PreflightReport report = Preflight(spec, context);
    if (const absl::Status in_time = work.Check(); !in_time.ok()) {
      return {.accepted = false, .problem = std::string(in_time.message()), .passing = true};
    }
    if (report.accepted()) continue;
    check.accepted = false;
    for (const v1::Finding& finding : report.findings()) {
      if (finding.severity() != v1::SEVERITY_ERROR || !finding.waived().empty()) continue;
      const bool passes = MayPassLater(finding, spec, machine);
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
                                PreflightContext context) {
  const bool own_machines = !spec.resources().provisioner().empty();
  const Requirements required = RequirementsOf(spec);
  std::vector<MachineView> machines;
  std::vector<NodeView> ready;
  std::vector<Attributes> attributes;
  for (const NodeView& node : fleet.Nodes()) {
    if (own_machines || !node.info.allocation().empty()) continue;
    if (node.state != RankView::Node::kReady || !KnowsItsGpus(node.info)) continue;
    // The job is judged by machines on which it may run.
    if (!Meets(required, attributes.emplace_back(AttributesOf(node.info)))) continue;
    machines.push_back(MachineViewOf(node.info));
    ready.push_back(node);
    const auto cordon = cordons.find(node.info.name());
    if (cordon == cordons.end()) continue;
    machines.back().cordon = absl::StrCat(node.info.name(), " is ", CordonText(cordon->second));
  }
  const bool any_gpu = std::ranges::any_of(machines, [](const MachineView& machine) {
    return !machine.gpus.empty() && machine.cuda_worker;
  });
  if (!machines.empty()) ResolveDevice(any_gpu, &spec);
  context.machine = BestMachine(spec, machines);
  if (!attributes.empty()) context.unmet = UnmetText(required, attributes);
  if (const int32_t needed = spec.resources().nodes(); needed > 1) {
    AddDifferences(spec, Suiting(spec, ready, context.has_unix_user), static_cast<size_t>(needed),
                   &context);
  }
  return Preflight(spec, context);
}

}  // namespace nsa::server
