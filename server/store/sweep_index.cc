#include "server/store/sweep_index.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/reason.h"

namespace nsa::server {
namespace {

absl::Status Mismatch(const v1::SweepSpec& sweep, const std::string& what) {
  return WithReason(absl::FailedPreconditionError(absl::StrFormat(
                        "sweep: '%s' %s; choose another name for this sweep", sweep.name(), what)),
                    Reason::kSweepMismatch);
}

bool WaitsForItsSweep(const v1::StoredJob& stored) {
  return stored.job().state() == v1::Job::STATE_STOPPED && !stored.sweep_dropped();
}

}  // namespace

SweepIndex::Key SweepIndex::KeyOf(const v1::Job& job) {
  return {job.owner(), job.spec().sweep().name()};
}

void SweepIndex::Put(int64_t number, const Job& job) {
  if (job->job().spec().has_sweep()) sweeps_[KeyOf(job->job())][number] = job;
}

void SweepIndex::Remove(int64_t number, const v1::Job& job) {
  const auto sweep = sweeps_.find(KeyOf(job));
  if (sweep == sweeps_.end()) return;
  sweep->second.erase(number);
  if (sweep->second.empty()) sweeps_.erase(sweep);
}

absl::Status SweepIndex::Check(const v1::Job& job) const {
  const v1::SweepSpec& sweep = job.spec().sweep();
  const auto known = sweeps_.find(KeyOf(job));
  if (!job.spec().has_sweep() || known == sweeps_.end()) return absl::OkStatus();
  for (const auto& [number, stored] : known->second) {
    const v1::Job& other = stored->job();
    const v1::SweepSpec& its = other.spec().sweep();
    if (its.index() == sweep.index()) {
      return Mismatch(
          sweep, absl::StrFormat("already has job %s as its number %d", other.id(), sweep.index()));
    }
    if (its.jobs() != sweep.jobs() || !std::ranges::equal(its.halve_at(), sweep.halve_at())) {
      return Mismatch(sweep, absl::StrCat("has other settings in job ", other.id()));
    }
  }
  return absl::OkStatus();
}

std::vector<std::vector<SweepIndex::Job>> SweepIndex::Halved() const {
  std::vector<std::vector<Job>> halved;
  for (const auto& [key, jobs] : sweeps_) {
    const bool any = std::ranges::any_of(jobs, [](const auto& job) {
      return !job.second->job().spec().sweep().halve_at().empty() && WaitsForItsSweep(*job.second);
    });
    if (!any) continue;
    std::vector<Job>& members = halved.emplace_back();
    for (const auto& [number, job] : jobs) members.push_back(job);
  }
  return halved;
}

}  // namespace nsa::server
