#include "server/act/profile/profile_broker.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"

namespace nsa::server {
namespace {

constexpr size_t kLongestError = 2000;

}  // namespace

absl::StatusOr<std::string> ProfileBroker::Begin(const v1::Job& job,
                                                 const std::vector<v1::RankPlacement>& ranks,
                                                 int64_t steps) {
  if (steps < 1 || steps > kMostSteps) {
    return absl::InvalidArgumentError(
        absl::StrFormat("steps: %d (from 1 to %d); choose another number", steps, kMostSteps));
  }
  const MutexLock lock(&mutex_);
  for (const auto& [id, profile] : profiles_) {
    if (profile.job_id == job.id()) {
      return absl::AlreadyExistsError(
          absl::StrCat("profile: job ", job.id(),
                       " is being profiled (at most one at a time); try again later"));
    }
  }
  if (profiles_.size() >= kMostProfiles) {
    return absl::ResourceExhaustedError(absl::StrCat("profile: ", profiles_.size(),
                                                     " jobs are being profiled (at most ",
                                                     kMostProfiles, "); try again later"));
  }
  // Not used again after a restart of the coordinator: workers and agents remember it.
  std::string id = absl::StrFormat("%x-%d", absl::ToUnixNanos(clock_.Wall()), next_id_++);
  Profile& profile = profiles_[id];
  profile = {
      .job_id = job.id(), .generation = job.generation(), .steps = static_cast<int32_t>(steps)};
  for (const v1::RankPlacement& place : ranks) {
    profile.parts.push_back(
        {.rank = place.rank(), .node = place.node(), .heard = clock_.Monotonic()});
  }
  return id;
}

std::vector<v1::ProfileOrder> ProfileBroker::Wanted(const std::string& node) const {
  const MutexLock lock(&mutex_);
  std::vector<v1::ProfileOrder> wanted;
  for (const auto& [id, profile] : profiles_) {
    for (const Part& part : profile.parts) {
      if (part.node != node || part.arrived()) continue;
      v1::ProfileOrder& order = wanted.emplace_back();
      order.set_profile_id(id);
      order.set_job_id(profile.job_id);
      order.set_generation(profile.generation);
      order.set_rank(part.rank);
      order.set_steps(profile.steps);
    }
  }
  return wanted;
}

std::string ProfileBroker::NodeOf(const std::string& profile_id, int32_t rank) const {
  const MutexLock lock(&mutex_);
  const auto profile = profiles_.find(profile_id);
  if (profile == profiles_.end()) return "";
  const auto part = std::ranges::find(profile->second.parts, rank, &Part::rank);
  return part == profile->second.parts.end() ? "" : part->node;
}

v1::ReportProfileResponse ProfileBroker::Report(const v1::ReportProfileRequest& report) {
  v1::ReportProfileResponse response;
  response.set_next_offset(report.size());  // nobody waits for it any more
  std::string changed;
  {
    const MutexLock lock(&mutex_);
    const auto profile = profiles_.find(report.profile_id());
    if (profile == profiles_.end()) return response;
    const auto part = std::ranges::find(profile->second.parts, report.rank(), &Part::rank);
    if (part == profile->second.parts.end() || !part->error.empty()) return response;
    part->heard = clock_.Monotonic();
    Take(report, &*part);
    if (part->error.empty()) {
      response.set_next_offset(part->received);
    } else if (!profile->second.failed.has_value()) {
      profile->second.failed = part->heard;
    }
    changed = profile->second.job_id;
  }
  changed_(changed);
  return response;
}

void ProfileBroker::Take(const v1::ReportProfileRequest& report, Part* part) {
  if (!report.error().empty()) {
    part->error = CutText(report.error(), kLongestError);
    return;
  }
  if (report.size() == 0 && report.data().empty()) return;
  const auto bytes = static_cast<int64_t>(report.data().size());
  const bool fits = report.size() <= kMostBytes && report.data().size() <= kMostPartBytes &&
                    report.offset() >= 0 && bytes > 0 && report.offset() <= report.size() - bytes;
  if (!fits || (part->size != 0 && part->size != report.size())) {
    part->error = absl::StrFormat(
        "rank %d: a part of %d bytes at %d of a trace of %d (parts of up to %d of %d); ask for "
        "fewer steps",
        part->rank, bytes, report.offset(), report.size(), kMostPartBytes, kMostBytes);
    return;
  }
  // Delivered before, or the reader has not taken the last part yet: the agent sends it again.
  if (report.offset() != part->received || !part->data.empty()) return;
  part->size = report.size();
  part->data = report.data();
  part->received += bytes;
}

absl::StatusOr<std::optional<v1::ProfileJobResponse>> ProfileBroker::Next(
    const std::string& profile_id) {
  const MutexLock lock(&mutex_);
  const auto found = profiles_.find(profile_id);
  if (found == profiles_.end()) return absl::CancelledError("profile: it has ended");
  bool over = true;
  for (Part& part : found->second.parts) {
    if (part.passed_on) continue;
    over = false;
    if (part.data.empty() && part.error.empty()) continue;
    v1::ProfileJobResponse message;
    message.set_rank(part.rank);
    message.set_node(part.node);
    if (part.error.empty()) {
      message.set_size(part.size);
      message.set_offset(part.received - static_cast<int64_t>(part.data.size()));
      message.set_data(std::exchange(part.data, {}));
    } else {
      message.set_error(part.error);
      part.data.clear();
    }
    part.passed_on = part.arrived();
    return message;
  }
  if (over) return absl::OutOfRangeError("end");
  return std::optional<v1::ProfileJobResponse>();
}

ProfileBroker::Summary ProfileBroker::SummaryOf(const std::string& profile_id) const {
  const MutexLock lock(&mutex_);
  Summary summary;
  const auto profile = profiles_.find(profile_id);
  if (profile == profiles_.end()) return summary;
  summary.steps = profile->second.steps;
  for (const Part& part : profile->second.parts) {
    if (!part.error.empty()) {
      summary.errors.push_back(part.error);
    } else if (part.passed_on) {
      ++summary.traces;
      summary.bytes += part.size;
    }
  }
  return summary;
}

void ProfileBroker::End(const std::string& profile_id) {
  const MutexLock lock(&mutex_);
  profiles_.erase(profile_id);
}

void ProfileBroker::Expire() {
  std::set<std::string> changed;
  {
    const MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Monotonic();
    for (auto& [id, profile] : profiles_) {
      const bool may_wait_for_ever =
          profile.failed.has_value() && now - *profile.failed >= kSilence;
      for (Part& part : profile.parts) {
        if (part.arrived()) continue;
        if (now - part.heard >= kSilence) {
          part.error = absl::StrFormat(
              "rank %d: agent %s did not answer for %d s; is it up? see `nsactl nodes`", part.rank,
              part.node, absl::ToInt64Seconds(kSilence));
        } else if (may_wait_for_ever && part.size == 0) {
          part.error = absl::StrFormat(
              "rank %d: no trace %d s after another rank gave none; ranks begin together, so try "
              "again",
              part.rank, absl::ToInt64Seconds(kSilence));
        } else {
          continue;
        }
        if (!profile.failed.has_value()) profile.failed = now;
        changed.insert(profile.job_id);
      }
    }
  }
  for (const std::string& job : changed) changed_(job);
}

}  // namespace nsa::server
