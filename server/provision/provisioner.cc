#include "server/provision/provisioner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"
#include "common/base/limits.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/base/utc_text.h"
#include "common/rpc/secret.h"
#include "server/decide/job_event.h"
#include "server/decide/lifecycle.h"
#include "server/decide/transition.h"
#include "server/store/random_id.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kPassEvery = absl::Seconds(2);
// After a failure of the cluster manager, which may have too much to do.
constexpr absl::Duration kRest = absl::Seconds(10);
constexpr absl::Duration kTokenLives = absl::Hours(1);
// A request whose answer was lost may still be on its way: it is not taken for gone before.
constexpr absl::Duration kOnItsWay = absl::Seconds(30);

std::string NameOf(const v1::Allocation& allocation) {
  return absl::StrCat(
      allocation.provisioner(), " job ",
      allocation.cluster_id().empty() ? ClusterName(allocation.id()) : allocation.cluster_id());
}

// Whether sbatch may have been called without an answer that was stored.
bool MayBeOnItsWay(const v1::Allocation& allocation, const std::string& id, absl::Time now) {
  return allocation.id() == id && allocation.cluster_id().empty() &&
         allocation.state() == v1::Allocation::STATE_ENDING &&
         now - absl::FromUnixNanos(allocation.request_unix_nanos()) < kOnItsWay;
}

std::string GrantedText(const v1::StoredJob& job) {
  const v1::Allocation& allocation = job.job().allocation();
  const std::string until = allocation.end_unix_nanos() == 0
                                ? ""
                                : absl::StrCat(" until ", UtcText(allocation.end_unix_nanos()));
  return absl::StrCat(NameOf(allocation), ": ", Count(MachinesOf(job.job().spec()), "machine"),
                      until);
}

}  // namespace

void Provisioner::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Provisioner::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    woken_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Provisioner::Loop() {
  NameThread("provisioner");
  while (true) {
    Pass();
    MutexLock lock(&mutex_);
    if (!stopping_) woken_.WaitFor(&mutex_, kPassEvery);
    if (stopping_) return;
  }
}

// Each problem is logged when it comes, not at every pass in which it lasts.
void Provisioner::Report(const std::string& what, const absl::Status& status) {
  if (status.ok() || absl::IsAborted(status)) return;
  if (!absl::IsInvalidArgument(status)) quiet_until_ = parts_.clock.Monotonic() + kRest;
  const std::string text = absl::StrCat(what, ": ", status.message());
  if (problems_.size() > 100) problems_.clear();
  const bool first = problems_.insert(text).second && !reported_.contains(text);
  if (first) spdlog::warn("{}: {}", parts_.name, text);
}

void Provisioner::Hold(const std::string& what, const absl::Status& status) {
  Report(what, status);
  const std::string why = absl::StrCat(what, ": ", status.message());
  if (parts_.fleet.NoteSilentCluster(parts_.name, why)) parts_.changed();
}

void Provisioner::Pass() {
  if (parts_.clock.Monotonic() < quiet_until_) return;
  const auto folders = ListAllocations(parts_.shared_dir);
  if (!folders.ok()) return Hold("shared_dir", folders.status());
  std::vector<JobPtr> jobs;
  std::set<std::string> loose(folders->begin(), folders->end());
  for (const JobPtr& job : parts_.store.Active()) {
    const v1::Allocation& allocation = job->job().allocation();
    if (IsLive(allocation)) loose.erase(allocation.id());
    if (allocation.state() == v1::Allocation::STATE_ENDING) loose.insert(allocation.id());
    if (job->job().spec().resources().provisioner() == parts_.name) jobs.push_back(job);
  }
  if (jobs.empty() && loose.empty()) return;
  const auto listed = parts_.cluster.List();
  if (!listed.ok()) return Hold("its queue", listed.status());
  reported_ = std::exchange(problems_, {});
  static_cast<void>(parts_.fleet.NoteSilentCluster(parts_.name, ""));
  Listing listing;
  for (const ClusterJob& job : *listed) listing[AllocationIdIn(job.name)].push_back(job);
  for (const std::string& id : loose) Report(id, GiveBack(id, listing));
  for (const JobPtr& job : jobs) Report(absl::StrCat("job ", job->job().id()), Tend(job, listing));
  parts_.changed();
}

absl::Status Provisioner::Tend(const JobPtr& job, const Listing& listing) {
  if (WantsAllocation(*job, parts_.clock.Wall())) return Request(job);
  const v1::Allocation& allocation = job->job().allocation();
  if (!IsLive(allocation)) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(CancelDoubles(allocation, listing));
  const auto seen = listing.find(allocation.id());
  AllocationStep step =
      NextStep(*job, seen == listing.end() ? std::vector<ClusterJob>() : seen->second);
  if (step.kind == AllocationStep::Kind::kFind) {
    NSA_ASSIGN_OR_RETURN(const auto found, parts_.cluster.Find(allocation.cluster_id()));
    step = AfterFind(*job, found);
  }
  NSA_RETURN_IF_ERROR(Do(job, step));
  NSA_ASSIGN_OR_RETURN(const JobPtr now, parts_.store.Find(job->job().id()));
  const bool runs = now->job().allocation().state() == v1::Allocation::STATE_RUNNING;
  return runs ? GiveTokens(*now) : absl::OkStatus();
}

absl::Status Provisioner::Do(const JobPtr& job, const AllocationStep& step) {
  switch (step.kind) {
    case AllocationStep::Kind::kSubmit:
      return Submit(job);
    case AllocationStep::Kind::kNote:
      return Note(job, step.job);
    case AllocationStep::Kind::kCancelled:
      return StopJob(job, step.job);
    case AllocationStep::Kind::kRefused: {
      const AllocationFolder folder(parts_.shared_dir, job->job().allocation().id());
      const std::string words = folder.LastWords();
      return FailJob(job, absl::StrCat(NameOf(job->job().allocation()), " ended before its agents ",
                                       "came up: ", TextOf(step.job), words.empty() ? "" : ": ",
                                       words, "; correct the cause, then resume the job"));
    }
    case AllocationStep::Kind::kLost:
      return LoseAllocation(job, step.job);
    default:
      return absl::OkStatus();
  }
}

absl::Status Provisioner::Change(const JobPtr& job, const JobStore::Change& change) {
  const std::string& id = job->job().allocation().id();
  return parts_.store
      .Update(job->job().id(),
              [&](v1::StoredJob* stored, std::vector<v1::JobEvent>* events) -> absl::Status {
                const v1::Allocation& allocation = stored->job().allocation();
                if (allocation.id() != id || !IsLive(allocation)) {
                  return absl::AbortedError("the job has moved on");
                }
                return change(stored, events);
              })
      .status();
}

// First the folder, then the store, then the cluster manager: each is found by the one before.
absl::Status Provisioner::Request(const JobPtr& job) {
  const std::string id = RandomId("a");
  const int machines = MachinesOf(job->job().spec());
  const AllocationFolder folder(parts_.shared_dir, id);
  NSA_RETURN_IF_ERROR(folder.Make({.job_id = job->job().id(), .machines = machines}));
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    if (!WantsAllocation(*stored, parts_.clock.Wall())) {
      return absl::AbortedError("the job has moved on");
    }
    v1::Allocation allocation;
    allocation.set_provisioner(parts_.name);
    allocation.set_id(id);
    allocation.set_state(v1::Allocation::STATE_REQUESTED);
    allocation.set_request_unix_nanos(absl::ToUnixNanos(parts_.clock.Wall()));
    *stored->mutable_job()->mutable_allocation() = std::move(allocation);
    events->push_back(EventOf(
        Reason::kAllocationRequested,
        absl::StrCat(Count(machines, "machine"), " of ", parts_.name, " as ", ClusterName(id))));
    return absl::OkStatus();
  };
  NSA_ASSIGN_OR_RETURN(const JobPtr asking, parts_.store.Update(job->job().id(), change));
  return Submit(asking);
}

absl::Status Provisioner::Submit(const JobPtr& job) {
  const absl::StatusOr<std::string> number = parts_.cluster.Submit(*job);
  if (absl::IsInvalidArgument(number.status())) {
    return FailJob(job, absl::StrCat(parts_.name, " refuses it: ", number.status().message(),
                                     "; change the job's resources or provisioners.", parts_.name,
                                     ", then resume the job"));
  }
  const auto change = [&](v1::StoredJob* stored, std::vector<v1::JobEvent>*) {
    v1::Allocation& allocation = *stored->mutable_job()->mutable_allocation();
    if (number.ok()) {
      allocation.set_cluster_id(*number);
      allocation.set_state(v1::Allocation::STATE_PENDING);
      allocation.set_text("PENDING");
    } else {
      allocation.set_text(std::string(number.status().message()));
    }
    return absl::OkStatus();
  };
  NSA_RETURN_IF_ERROR(Change(job, change));
  return number.status();
}

absl::Status Provisioner::CancelDoubles(const v1::Allocation& allocation, const Listing& listing) {
  const auto seen = listing.find(allocation.id());
  if (seen == listing.end()) return absl::OkStatus();
  const std::string keep = allocation.cluster_id().empty() ? "*" : allocation.cluster_id();
  const std::vector<std::string> doubles = ToCancel(seen->second, keep);
  return doubles.empty() ? absl::OkStatus() : parts_.cluster.Cancel(doubles);
}

absl::Status Provisioner::Note(const JobPtr& job, const ClusterJob& seen) {
  const auto before = job->job().allocation().state();
  const auto change = [&](v1::StoredJob* stored, std::vector<v1::JobEvent>* events) {
    NoteClusterJob(seen, stored->mutable_job()->mutable_allocation());
    const auto now = stored->job().allocation().state();
    if (now == v1::Allocation::STATE_RUNNING && before != now) {
      events->push_back(EventOf(Reason::kAllocationGranted, GrantedText(*stored)));
    }
    return absl::OkStatus();
  };
  return Change(job, change);
}

// Each agent needs a token once, and waits for it. It is made when the machine is there, so it is
// valid for a short time only, and removed when it has been used.
absl::Status Provisioner::GiveTokens(const v1::StoredJob& job) {
  const v1::Allocation& allocation = job.job().allocation();
  if (joined_.contains(allocation.id())) return absl::OkStatus();
  const AllocationFolder folder(parts_.shared_dir, allocation.id());
  bool all = true;
  for (int i = 0; i < MachinesOf(job.job().spec()); ++i) {
    const std::string node = AllocatedNode(allocation, i);
    if (parts_.access.HasJoined(node)) {
      folder.RemoveToken(i);
      continue;
    }
    all = false;
    if (folder.TokenAge(i) < kTokenLives / 2) continue;
    NSA_ASSIGN_OR_RETURN(const std::string secret, NewSecret());
    v1::AccessToken token;
    token.set_role(v1::ROLE_AGENT);
    token.set_node(node);
    NSA_RETURN_IF_ERROR(
        parts_.access.Create(std::move(token), kTokenLives, Sha256(secret)).status());
    NSA_RETURN_IF_ERROR(folder.Write(absl::StrCat("agent-", i, ".token"), secret + "\n"));
  }
  if (all) joined_.insert(allocation.id());
  return absl::OkStatus();
}

// A user who cancels the machines wants the job to end.
absl::Status Provisioner::StopJob(const JobPtr& job, const ClusterJob& ended) {
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    v1::Job& fresh = *stored->mutable_job();
    const std::string text =
        absl::StrCat(NameOf(fresh.allocation()), " was cancelled: ", TextOf(ended),
                     "; `nsactl resume ", fresh.name(), "` continues on another allocation");
    EndAllocation(&fresh);
    if (!FindTransition(fresh.state(), Trigger::kGracefulStopAsked).ok()) return absl::OkStatus();
    if (fresh.stop().mode() < v1::STOP_MODE_GRACEFUL) {
      fresh.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
    }
    return Apply(Trigger::kGracefulStopAsked,
                 {.reason = Word(Reason::kAllocationCancelled),
                  .text = text,
                  .severity = v1::SEVERITY_WARNING},
                 parts_.clock.Wall(), stored, events);
  };
  return Change(job, change);
}

// Nothing of the allocation exists.
absl::Status Provisioner::FailJob(const JobPtr& job, const std::string& text) {
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    NSA_RETURN_IF_ERROR(Apply(Trigger::kAllocationRefused,
                              {.text = text, .severity = v1::SEVERITY_ERROR}, parts_.clock.Wall(),
                              stored, events));
    stored->mutable_job()->mutable_allocation()->set_state(v1::Allocation::STATE_ENDED);
    return absl::OkStatus();
  };
  return Change(job, change);
}

absl::Status Provisioner::LoseAllocation(const JobPtr& job, const ClusterJob& ended) {
  const auto change = [&](v1::StoredJob* stored, std::vector<v1::JobEvent>* events) {
    v1::Allocation& allocation = *stored->mutable_job()->mutable_allocation();
    events->push_back(EventOf(Reason::kAllocationLost,
                              absl::StrCat(NameOf(allocation), " is over: ", TextOf(ended)),
                              v1::SEVERITY_WARNING));
    allocation.set_text(TextOf(ended));
    EndAllocation(stored->mutable_job());
    return absl::OkStatus();
  };
  return Change(job, change);
}

absl::Status Provisioner::GiveBack(const std::string& id, const Listing& listing) {
  const auto seen = listing.find(id);
  if (seen != listing.end()) {
    const std::vector<std::string> live = ToCancel(seen->second, "");
    if (!live.empty()) return parts_.cluster.Cancel(live);
    if (!AllGone(seen->second)) return absl::OkStatus();
  }
  const AllocationFolder folder(parts_.shared_dir, id);
  const auto owner = folder.Owner();
  if (owner.ok() && seen == listing.end()) {
    const auto job = parts_.store.Find(owner->job_id);
    if (job.ok() && MayBeOnItsWay((*job)->job().allocation(), id, parts_.clock.Wall())) {
      return absl::OkStatus();
    }
  }
  NSA_RETURN_IF_ERROR(Revoke(id));
  parts_.fleet.ForgetAllocation(id);
  NSA_RETURN_IF_ERROR(NoteReturned(id, seen == listing.end() ? "" : TextOf(seen->second.back())));
  joined_.erase(id);
  return folder.Remove();
}

absl::Status Provisioner::Revoke(const std::string& id) {
  const std::string prefix = absl::StrCat(parts_.name, "-", id, "-");
  for (const v1::AccessToken& token : parts_.access.List("", limits::kTokens)) {
    if (!token.node().starts_with(prefix)) continue;
    NSA_RETURN_IF_ERROR(parts_.access.Revoke(token.id()).status());
  }
  return absl::OkStatus();
}

absl::Status Provisioner::NoteReturned(const std::string& id, const std::string& end) {
  const auto owner = AllocationFolder(parts_.shared_dir, id).Owner();
  std::string job_id = owner.ok() ? owner->job_id : "";
  for (const JobPtr& job : parts_.store.Active()) {
    if (job->job().allocation().id() == id) job_id = job->job().id();
  }
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    v1::Allocation& allocation = *stored->mutable_job()->mutable_allocation();
    if (allocation.id() != id || allocation.state() != v1::Allocation::STATE_ENDING) {
      return absl::AbortedError("the job has moved on");
    }
    allocation.set_state(v1::Allocation::STATE_ENDED);
    if (!end.empty()) allocation.set_text(end);
    events->push_back(EventOf(Reason::kAllocationReturned,
                              absl::StrCat(NameOf(allocation), end.empty() ? "" : ": ", end)));
    return absl::OkStatus();
  };
  const absl::Status noted = parts_.store.Update(job_id, change).status();
  // The job may have been deleted, or never have got this allocation.
  return absl::IsNotFound(noted) || absl::IsAborted(noted) ? absl::OkStatus() : noted;
}

}  // namespace nsa::server
