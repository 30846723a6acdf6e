#include "server/decide/rule/quota.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/utc_text.h"
#include "server/decide/lifecycle.h"

namespace nsa::server {
namespace {

constexpr char kEverybody[] = "*";
constexpr int kMostQuotas = 1'000;
constexpr double kDefaultDays = 7;
constexpr double kLeastDays = 0.05;

template <typename Number>
absl::Status InRange(const std::string& field, bool has, Number value, Number least, Number most) {
  // Written so that NaN is refused too.
  if (!has || (value >= least && value <= most)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, " (from ", least, " to ", most, "); correct it"));
}

absl::Status CheckEntry(const std::string& where, const v1::QuotaConfig& quota) {
  const v1::GpuTimeQuota& time = quota.gpu_time();
  NSA_RETURN_IF_ERROR(InRange(where + "jobs", quota.has_jobs(), quota.jobs(), 0, 1'000'000));
  NSA_RETURN_IF_ERROR(InRange(where + "ranks", quota.has_ranks(), quota.ranks(), 0, 65'536));
  NSA_RETURN_IF_ERROR(InRange(where + "highest_priority", quota.has_highest_priority(),
                              quota.highest_priority(), -1'000, 1'000));
  NSA_RETURN_IF_ERROR(InRange(where + "gpu_time.hours", time.has_hours(), time.hours(), 0.0, 1e9));
  NSA_RETURN_IF_ERROR(InRange(where + "gpu_time.days", time.has_days(), time.days(), kLeastDays,
                              absl::ToDoubleHours(kLongestGpuWindow) / 24));
  if (quota.has_gpu_time() && !time.has_hours()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "gpu_time.hours: not set; say how many GPU hours"));
  }
  return absl::OkStatus();
}

absl::Status OverQuota(const std::string& text) {
  return WithReason(absl::FailedPreconditionError(text), Reason::kOverQuota);
}

// Without a quota of GPU time: never.
bool GpuTimeIsUsedUp(const v1::QuotaConfig& quota, const GpuHours& hours, absl::Time now) {
  if (!quota.has_gpu_time()) return false;
  return GpuTimeIn(hours, WindowOf(&quota), now) >= absl::Hours(quota.gpu_time().hours());
}

// A job that leaves its device open may get a GPU.
bool MayUseGpus(const v1::JobSpec& spec) { return spec.runtime().device() != v1::DEVICE_CPU; }

// "ada has used 101.5 GPU hours in the last 7 days (below 100, quotas in coordinator.yaml); again
// from 2026-12-01T09:00:00Z on".
std::string GpuTimeText(const v1::QuotaConfig& quota, const std::string& owner,
                        const GpuHours& hours, absl::Time now) {
  const absl::Duration window = WindowOf(&quota);
  const absl::Time again = WhenBelow(absl::Hours(quota.gpu_time().hours()), hours, window, now);
  return absl::StrFormat(
      "%s has used %.1f GPU hours in the last %s days (below %s, quotas in coordinator.yaml)%s",
      owner, absl::ToDoubleHours(GpuTimeIn(hours, window, now)), Number(quota.gpu_time().days()),
      Number(quota.gpu_time().hours()),
      again == absl::InfiniteFuture()
          ? std::string("; use device: cpu")
          : absl::StrCat("; again from ", UtcText(absl::ToUnixNanos(again)),
                         " on, if nothing more runs"));
}

int64_t RanksWanted(const v1::JobSpec& spec) { return std::max(spec.resources().gpus(), 1); }

// Takes slots of the machines, and not of an allocation of its own.
bool UsesSlots(const v1::StoredJob& job) {
  return job.job().spec().resources().provisioner().empty();
}

}  // namespace

absl::StatusOr<Quotas> Quotas::Make(
    const google::protobuf::RepeatedPtrField<v1::QuotaConfig>& config) {
  if (config.size() > kMostQuotas) {
    return absl::InvalidArgumentError(absl::StrCat("quotas: ", config.size(), " (at most ",
                                                   kMostQuotas, "); use owner: '*' for the rest"));
  }
  Quotas quotas;
  for (int i = 0; i < config.size(); ++i) {
    v1::QuotaConfig quota = config[i];
    const std::string where = absl::StrCat("quotas[", i, "].");
    if (quota.owner().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "owner: not set; name a token, local or '*'"));
    }
    NSA_RETURN_IF_ERROR(CheckEntry(where, quota));
    if (quota.has_gpu_time() && !quota.gpu_time().has_days()) {
      quota.mutable_gpu_time()->set_days(kDefaultDays);
    }
    const std::string owner = quota.owner();
    if (!quotas.by_owner_.emplace(owner, std::move(quota)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "owner: ", owner, " is there twice; put its limits into one entry"));
    }
  }
  return quotas;
}

const v1::QuotaConfig* Quotas::Of(const std::string& owner) const {
  auto found = by_owner_.find(owner);
  if (found == by_owner_.end()) found = by_owner_.find(kEverybody);
  return found == by_owner_.end() ? nullptr : &found->second;
}

absl::Duration WindowOf(const v1::QuotaConfig* quota) {
  const bool set = quota != nullptr && quota->has_gpu_time();
  return absl::Hours(24) * (set ? quota->gpu_time().days() : kDefaultDays);
}

std::map<std::string, Taken> TakenBy(
    const std::vector<std::shared_ptr<const v1::StoredJob>>& active, absl::Time now) {
  std::map<std::string, Taken> owners;
  for (const auto& job : active) {
    Taken& taken = owners[job->job().owner()];
    ++taken.jobs;
    if (HoldsSlots(job->job().state()) && UsesSlots(*job)) taken.ranks += job->placements_size();
    AddHours(GpuHoursOfPresent(*job, now), &taken.gpu_hours);
  }
  return owners;
}

absl::Status CheckQuota(const v1::QuotaConfig& quota, const std::string& owner, const Taken& taken,
                        const v1::JobSpec& spec, absl::Time now) {
  if (quota.has_highest_priority() && spec.priority() > quota.highest_priority()) {
    return OverQuota(absl::StrCat("priority: ", spec.priority(), " (at most ",
                                  quota.highest_priority(), " for ", owner,
                                  ", quotas in coordinator.yaml); lower it"));
  }
  if (quota.has_ranks() && RanksWanted(spec) > quota.ranks()) {
    return OverQuota(absl::StrCat("resources.gpus: ", RanksWanted(spec), " (at most ",
                                  quota.ranks(), " at a time for ", owner,
                                  ", quotas in coordinator.yaml); lower it"));
  }
  if (quota.has_jobs() && taken.jobs >= quota.jobs()) {
    return OverQuota(absl::StrCat(
        "quota: ", owner, " has ", Count(taken.jobs, "job"), " in the queue or running (at most ",
        quota.jobs(), ", quotas in coordinator.yaml); wait until one has ended, or stop one"));
  }
  if (MayUseGpus(spec) && GpuTimeIsUsedUp(quota, taken.gpu_hours, now)) {
    return OverQuota(absl::StrCat("quota: ", GpuTimeText(quota, owner, taken.gpu_hours, now)));
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> HeldByQuota(
    const std::vector<std::shared_ptr<const v1::StoredJob>>& active, const Quotas& quotas,
    const std::function<GpuHours(const std::string& owner)>& stored, absl::Time now) {
  std::map<std::string, std::string> held;
  if (quotas.empty()) return held;
  std::map<std::string, std::vector<const v1::StoredJob*>> queued;
  for (const auto& job : active) {
    const bool waits = job->job().state() == v1::Job::STATE_QUEUED && UsesSlots(*job);
    if (waits) queued[job->job().owner()].push_back(job.get());
  }
  if (queued.empty()) return held;
  std::map<std::string, Taken> taken = TakenBy(active, now);
  for (auto& [owner, jobs] : queued) {
    const v1::QuotaConfig* const quota = quotas.Of(owner);
    if (quota == nullptr) continue;
    Taken& own = taken[owner];
    if (quota->has_gpu_time()) AddHours(stored(owner), &own.gpu_hours);
    const bool used_up = GpuTimeIsUsedUp(*quota, own.gpu_hours, now);
    const int64_t most = quota->has_ranks() ? quota->ranks() : std::numeric_limits<int64_t>::max();
    std::ranges::stable_sort(jobs, {}, [](const v1::StoredJob* job) {
      return std::make_pair(-job->job().spec().priority(), job->queued_unix_nanos());
    });
    bool full = false;
    for (const v1::StoredJob* job : jobs) {
      const v1::JobSpec& spec = job->job().spec();
      if (used_up && MayUseGpus(spec)) {
        held[job->job().id()] = GpuTimeText(*quota, owner, own.gpu_hours, now);
        continue;
      }
      full = full || own.ranks + RanksWanted(spec) > most;
      if (full) {
        held[job->job().id()] =
            absl::StrCat("needs ", Count(RanksWanted(spec), "rank"), "; ", owner, " has ",
                         own.ranks, " that run or are first in line (at most ", most,
                         " at a time, quotas in coordinator.yaml)");
        continue;
      }
      own.ranks += RanksWanted(spec);
    }
  }
  return held;
}

}  // namespace nsa::server
