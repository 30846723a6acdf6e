#include "server/decide/queue/waiting.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/count.h"
#include "common/base/reason.h"
#include "server/decide/allocation/allocation.h"

namespace nsa::server {
namespace {

// "1 machine is cordoned: gpu-3, drained by alice (new kernel)"; empty if none is.
std::string CordonedText(const std::vector<NodeSlots>& nodes) {
  constexpr int64_t kNamed = 3;
  int64_t count = 0;
  std::string names;
  for (const NodeSlots& node : nodes) {
    if (node.cordon.empty()) continue;
    if (++count <= kNamed) absl::StrAppend(&names, "; ", node.name, ", ", node.cordon);
  }
  if (count == 0) return "";
  return absl::StrCat(Count(count, "machine"), count == 1 ? " is" : " are",
                      " cordoned: ", names.substr(2), count > kNamed ? "; …" : "");
}

// ", at least 2 (restart.min_ranks)" for a job that may start with fewer ranks.
std::string AtLeast(const QueuedJob& job) {
  return job.fewer.empty() ? ""
                           : absl::StrCat(", at least ", job.fewer.back(), " (restart.min_ranks)");
}

// " with gpu: h100, rack: a"; empty if nothing is required.
std::string RequiredText(const Requirements& required) {
  if (required.empty()) return "";
  return absl::StrCat(" with ", absl::StrJoin(required, ", ", absl::PairFormatter(": ")));
}

// "needs 2 GPUs on each of 2 machines", "needs 2 GPUs on one machine".
std::string NeededOnEach(const QueuedJob& job) {
  return absl::StrCat("needs ", Slots(RanksPerNode(job), job.cuda),
                      job.nodes == 1 ? " on one machine"
                                     : absl::StrCat(" on each of ", Count(job.nodes, "machine")),
                      RequiredText(job.required),
                      job.fewer.empty() ? "" : absl::StrCat(", in all", AtLeast(job).substr(1)));
}

// "node-02 has 2 of 3 free, node-01 1 of 3".
std::string FreeByMachine(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  constexpr size_t kNamed = 4;
  std::vector<const NodeSlots*> with_room;
  for (const NodeSlots& node : nodes) {
    if (node.cordon.empty() && Free(node, job.cuda) > 0) with_room.push_back(&node);
  }
  std::ranges::stable_sort(with_room, std::ranges::greater(),
                           [&](const NodeSlots* node) { return Free(*node, job.cuda); });
  std::string text;
  for (size_t i = 0; i < std::min(with_room.size(), kNamed); ++i) {
    const NodeSlots& node = *with_room[i];
    absl::StrAppend(&text, i == 0 ? "" : ", ", node.name, i == 0 ? " has " : " ",
                    Free(node, job.cuda), " of ", Total(node, job.cuda), i == 0 ? " free" : "");
  }
  return absl::StrCat(text, with_room.size() > kNamed ? ", …" : "");
}

std::string UnmetBy(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  std::vector<Attributes> machines;
  for (const NodeSlots& node : nodes) machines.push_back(node.attributes);
  return UnmetText(job.required, machines);
}

// Differences among the machines that could run a multi-machine job; empty if there are too few.
MachineDifferences DifferencesFor(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  if (job.nodes == 1) return {};
  std::vector<Makeup> suiting;
  for (const NodeSlots& node : nodes) {
    if (Suits(job, node)) suiting.push_back(node.makeup);
  }
  if (static_cast<int32_t>(suiting.size()) < job.nodes) return {};
  return DifferencesOf(suiting, job.demand);
}

}  // namespace

Waiting Reasons::Unplaceable(const QueuedJob& job) {
  const auto [known, isnew] = never_.try_emplace(KindOf(job));
  if (isnew) known->second = WhyNever(job);
  known->second.job_id = job.id;
  return known->second;
}

Waiting Reasons::ForCordons(const QueuedJob& job) {
  const auto [known, isnew] = cordoned_.try_emplace(KindOf(job));
  if (isnew) known->second = WhyCordoned(job);
  known->second.job_id = job.id;
  return known->second;
}

Waiting Reasons::WhyCordoned(const QueuedJob& job) const {
  return {job.id, Word(Reason::kCordoned),
          absl::StrCat(NeededOnEach(job), "; ", CordonedText(nodes_),
                       ". Uncordon one (`nsactl node uncordon`) or add machines")};
}

Waiting Reasons::WhyNever(const QueuedJob& job) const {
  if (nodes_.empty()) {
    return {job.id, Word(Reason::kNoNodes), "no machine is ready; `nsactl nodes` shows them"};
  }
  if (const MachineDifferences differences = DifferencesFor(job, nodes_);
      !differences.text.empty()) {
    return {job.id, Word(Reason::kUnplaceable),
            absl::StrCat("needs ", Count(job.nodes, "machine"), " that can work together; ",
                         differences.text, "; ", differences.fix)};
  }
  if (std::string unmet = UnmetBy(job, nodes_); !unmet.empty()) {
    return {job.id, Word(Reason::kUnplaceable),
            absl::StrCat("requires ", unmet, ". Change resources.require or add such a machine")};
  }
  int32_t most = 0;
  for (const NodeSlots& node : nodes_) most = std::max(most, Total(node, job.cuda));
  const auto reaching =
      std::ranges::count_if(nodes_, [&](const NodeSlots& node) { return Reaches(job, node); });
  std::string text =
      absl::StrCat(NeededOnEach(job), "; ", nodes_.size(), " are ready, the largest has ", most,
                   ". Lower resources.gpus or add machines");
  if (reaching < job.nodes) {
    absl::StrAppend(&text, "; ", reaching, " of them have a rank_address (agent.yaml)");
  }
  const auto closed =
      std::ranges::count_if(nodes_, [&](const NodeSlots& node) { return !HasUser(job, node); });
  if (closed > 0) {
    absl::StrAppend(&text, "; ", closed,
                    " of them run only jobs with a Unix user (unix_users in agent.yaml): submit "
                    "with a token made with `nsactl token create --unix-user`");
  }
  return {job.id, Word(Reason::kUnplaceable), std::move(text)};
}

Waiting Reasons::ForSlots(const QueuedJob& job, const std::string& giving_way) const {
  int32_t free = 0;
  for (const NodeSlots& node : nodes_) {
    if (node.cordon.empty()) free += Free(node, job.cuda);
  }
  std::string text = absl::StrCat("needs ", Slots(job.ranks, job.cuda), AtLeast(job), ", ", free,
                                  free == 1 ? " is free" : " are free");
  // As many are free, but not where the job needs them.
  if (free >= job.ranks) text = absl::StrCat(NeededOnEach(job), "; ", FreeByMachine(job, nodes_));
  for (const std::string& more : {giving_way, CordonedText(nodes_)}) {
    if (!more.empty()) absl::StrAppend(&text, "; ", more);
  }
  if (const std::string differ = DifferencesFor(job, nodes_).text; !differ.empty()) {
    absl::StrAppend(&text, "; not all machines can work together: ", differ);
  }
  return {job.id, Word(Reason::kWaitingForSlots), std::move(text)};
}

Waiting Reasons::Behind(const QueuedJob& job, const QueuedJob& ahead) {
  return {job.id, Word(Reason::kBehindAnotherJob),
          absl::StrCat(ahead.owner == job.owner
                           ? absl::StrCat("job ", ahead.name)
                           : absl::StrCat("a job of another owner, priority ", ahead.priority, ","),
                       " is first in line")};
}

// "2 jobs give way to it"; empty if none does.
std::string GivingWayText(const QueuedJob& job, const std::vector<RunningJob>& running) {
  const auto count = std::ranges::count_if(running, [&](const RunningJob& other) {
    return other.preempted_by == job.id && !other.slots.empty();
  });
  if (count == 0) return "";
  return absl::StrCat(Count(count, "job"), count == 1 ? " gives" : " give", " way to it");
}

// Why a job is not placed whose allocation is not complete.
std::string AllocationText(const v1::Job& job, int ready, const std::string& silence) {
  const v1::Allocation& allocation = job.allocation();
  if (!silence.empty()) {
    return absl::StrCat("waiting for ", job.spec().resources().provisioner(),
                        ", which cannot be asked (", silence, "); it is asked again");
  }
  switch (allocation.state()) {
    case v1::Allocation::STATE_RUNNING:
      return absl::StrCat("waiting for agents: ", ready, " of ", MachinesOf(job.spec()),
                          " are ready on the machines of ", allocation.provisioner(), " job ",
                          allocation.cluster_id());
    case v1::Allocation::STATE_REQUESTED:
    case v1::Allocation::STATE_PENDING:
      return absl::StrCat("waiting for ", allocation.provisioner(), ": ",
                          allocation.text().empty() ? "asking for machines" : allocation.text());
    case v1::Allocation::STATE_ENDING:
      return absl::StrCat("waiting for ", allocation.provisioner(),
                          " to reclaim the previous machines");
    default:
      return absl::StrCat("waiting for ", job.spec().resources().provisioner());
  }
}

}  // namespace nsa::server
