#include "server/act/edit/edit_job.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/job/labels.h"
#include "server/act/edit/request_id.h"
#include "server/decide/job_event.h"
#include "server/decide/problem/problems.h"
#include "server/decide/problem/templates.h"

namespace nsa::server {
namespace {

constexpr size_t kLongestNote = 1'000;  // bytes
constexpr size_t kWordBytes = 64;       // of a problem's name
constexpr int kMostMutes = 64;

using Labels = google::protobuf::Map<std::string, std::string>;

// A job that failed has a problem with the name of its reason.
bool IsProblem(const std::string& word) {
  return TemplateOf(word) != nullptr || IsReasonWord(word);
}

absl::Status CheckMutes(const v1::EditJobRequest& request) {
  for (const std::string& word : request.mute()) {
    if (std::ranges::count(request.unmute(), word) > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unmute: '", CleanLine(CutText(word, kWordBytes)), "' is also in mute; choose one"));
    }
    if (IsProblem(word)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "mute: '", CleanLine(CutText(word, kWordBytes)),
        "' is not the name of a problem; name one that `nsactl describe` shows, such as DIVERGED"));
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::EditJobRequest& request, const std::string& note) {
  NSA_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  if (request.set_labels().empty() && request.remove_labels().empty() && note.empty() &&
      request.mute().empty() && request.unmute().empty()) {
    return absl::InvalidArgumentError(
        "request: says nothing of the job; set or remove a label, write a note, or mute a problem");
  }
  if (note.size() > kLongestNote) {
    return absl::InvalidArgumentError(
        absl::StrFormat("note: %d bytes (at most %d); shorten it", note.size(), kLongestNote));
  }
  for (const auto& [key, value] : request.set_labels()) {
    const std::string fault = LabelFault(key, value);
    if (fault.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("set_labels: '", CleanLine(CutText(key, kLongestLabelKey)), "': ", fault));
  }
  for (const std::string& key : request.remove_labels()) {
    if (!request.set_labels().contains(key)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("remove_labels: '", key, "' is also set; choose one"));
  }
  return CheckMutes(request);
}

absl::Status CheckOfSweep(const v1::JobSpec& spec, const std::string& key) {
  if (!spec.has_sweep() || !IsLabelOfSweep(key)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("labels: '", key, "' belongs to the sweep ", spec.sweep().name(),
                   ", which knows its jobs by it; choose another key"));
}

// Changes the labels; returns what has changed, human-readable.
absl::StatusOr<std::vector<std::string>> ChangeLabels(const v1::EditJobRequest& request,
                                                      v1::JobSpec* spec) {
  std::vector<std::string> changes;
  Labels& labels = *spec->mutable_labels();
  const std::map<std::string, std::string> wanted(request.set_labels().begin(),
                                                  request.set_labels().end());
  for (const auto& [key, value] : wanted) {
    NSA_RETURN_IF_ERROR(CheckOfSweep(*spec, key));
    const auto had = labels.find(key);
    if (had != labels.end() && had->second == value) continue;
    changes.push_back(had == labels.end()
                          ? absl::StrCat(key, "=", value)
                          : absl::StrCat(key, "=", value, " (was ", had->second, ")"));
    labels[key] = value;
  }
  for (const std::string& key : request.remove_labels()) {
    NSA_RETURN_IF_ERROR(CheckOfSweep(*spec, key));
    if (labels.erase(key) > 0) changes.push_back(absl::StrCat(key, " removed"));
  }
  if (labels.size() > kMostLabels) {
    return absl::InvalidArgumentError(
        absl::StrFormat("set_labels: the job would have %d labels (at most %d); remove some",
                        labels.size(), kMostLabels));
  }
  return changes;
}

// Mutes and unmutes, in the name of `who`; adds an event for each change.
absl::Status ChangeMutes(const v1::EditJobRequest& request, const std::string& who, absl::Time now,
                         v1::Job* job, std::vector<v1::JobEvent>* events) {
  auto& mutes = *job->mutable_mutes();
  const auto drop = [&mutes](const auto& unwanted) {
    const int before = mutes.size();
    mutes.erase(std::remove_if(mutes.begin(), mutes.end(), unwanted), mutes.end());
    return mutes.size() < before;
  };
  drop([job](const v1::Mute& mute) { return !Holds(mute, *job); });
  for (const std::string& word : request.mute()) {
    if (std::ranges::count(mutes, word, &v1::Mute::problem) > 0) continue;
    v1::Mute& mute = *mutes.Add();
    mute.set_problem(word);
    mute.set_who(who);
    mute.set_unix_nanos(absl::ToUnixNanos(now));
    mute.set_end_unix_nanos(job->end_unix_nanos());
    events->push_back(EventOf(
        Reason::kMuted,
        absl::StrCat(word, job->end_unix_nanos() == 0 ? " until the job ends (" : ": seen (", who,
                     ")")));
  }
  for (const std::string& word : request.unmute()) {
    if (!drop([&word](const v1::Mute& mute) { return mute.problem() == word; })) continue;
    events->push_back(EventOf(Reason::kUnmuted, absl::StrCat(word, " (", who, ")")));
  }
  if (mutes.size() <= kMostMutes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("mute: the job would have %d muted problems (at most %d); unmute some",
                      mutes.size(), kMostMutes));
}

}  // namespace

absl::StatusOr<JobPtr> EditJob(JobStore& store, const v1::EditJobRequest& request,
                               const std::string& who, const std::string& only) {
  const std::string note = CleanText(std::string(absl::StripAsciiWhitespace(request.note())));
  NSA_RETURN_IF_ERROR(Check(request, note));
  NSA_ASSIGN_OR_RETURN(const JobPtr job, store.Find(request.job(), only, v1::JOB_USE_EDIT));
  v1::EditJobRequest asked = request;
  asked.clear_request_id();
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    NSA_ASSIGN_OR_RETURN(const std::vector<std::string> changes,
                         ChangeLabels(request, stored->mutable_job()->mutable_spec()));
    if (!changes.empty()) {
      events->push_back(EventOf(Reason::kLabelsChanged,
                                absl::StrCat(absl::StrJoin(changes, ", "), " (", who, ")")));
    }
    if (!note.empty())
      events->push_back(EventOf(Reason::kNote, absl::StrCat(note, " (", who, ")")));
    return ChangeMutes(request, who, store.clock().Wall(), stored->mutable_job(), events);
  };
  return store.Update(
      job->job().id(), change,
      {.id = request.request_id(), .fingerprint = absl::StrCat("edit ", Fingerprint(asked))});
}

}  // namespace nsa::server
