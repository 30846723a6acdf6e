#include "server/store/job_table.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "server/decide/lifecycle.h"
#include "server/store/sealed.h"

namespace nsa::server {
namespace {

constexpr int kDefaultPage = 100;
constexpr int kLargestPage = 1'000;

// The out_dir by which jobs are compared.
std::string RealOutDir(const v1::StoredJob& stored) {
  if (!stored.out_dir_real().empty()) return stored.out_dir_real();
  const std::filesystem::path path = stored.job().spec().train().out_dir();
  const std::filesystem::path normal = path.lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

bool IsWanted(const v1::Job& job, const JobTable::Filter& filter) {
  if (!filter.owner.empty() && job.owner() != filter.owner) return false;
  const auto& states = filter.states;
  if (!states.empty() && std::ranges::find(states, job.state()) == states.end()) return false;
  const auto& labels = job.spec().labels();
  return std::ranges::all_of(filter.labels, [&](const auto& wanted) {
    const auto label = labels.find(wanted.first);
    return label != labels.end() && label->second == wanted.second;
  });
}

// Whether a job in this state can be used so.
bool IsFor(v1::JobUse use, v1::Job::State state) {
  switch (use) {
    case v1::JOB_USE_RESUMABLE:
      return state == v1::Job::STATE_FAILED || state == v1::Job::STATE_STOPPED;
    case v1::JOB_USE_ENDED:
      return IsTerminal(state);
    default:
      return !IsTerminal(state);
  }
}

// `jobs`, newest first, can all be meant by `name`.
absl::Status AmbiguousName(const std::string& name, const std::vector<const v1::Job*>& jobs) {
  constexpr size_t kMostShown = 8;
  std::vector<std::string> shown;
  for (const v1::Job* job : jobs) {
    if (shown.size() == kMostShown) break;
    shown.push_back(absl::StrCat(job->id(), " ", StateTitle(*job)));
  }
  if (jobs.size() > shown.size()) shown.emplace_back("…");
  return WithReason(absl::InvalidArgumentError(absl::StrFormat(
                        "job: '%s' can mean %d jobs (at most 1): %s; use the id of one",
                        CutText(name, 80), jobs.size(), absl::StrJoin(shown, ", "))),
                    Reason::kAmbiguousName);
}

absl::StatusOr<int64_t> ParsePageToken(const std::string& token) {
  int64_t number = 0;
  absl::string_view digits = token;
  if (!absl::ConsumePrefix(&digits, "n") || !absl::SimpleAtoi(digits, &number)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page_token: '", token, "' does not come from an earlier reply; leave it empty"));
  }
  return number;
}

}  // namespace

absl::Status JobTable::Load() {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_.Prepare("SELECT jobs.number, jobs.id, jobs.body, progress.body FROM jobs "
                        "LEFT JOIN progress ON progress.job = jobs.number ORDER BY jobs.number"));
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return absl::OkStatus();
    auto job = std::make_shared<v1::StoredJob>();
    NSA_RETURN_IF_ERROR(Annotate(Unseal(rows.Blob(2), job.get()), "job " + rows.Text(1)));
    if (const std::string progress = rows.Blob(3); !progress.empty()) {
      NSA_RETURN_IF_ERROR(Annotate(Unseal(progress, job->mutable_job()->mutable_progress()),
                                   "progress of job " + rows.Text(1)));
    }
    if (job->deleted()) {
      deleted_[rows.Text(1)] = rows.Int(0);
      continue;
    }
    Remember(rows.Int(0), std::move(job));
  }
}

absl::StatusOr<int64_t> JobTable::Insert(const v1::StoredJob& job) {
  NSA_ASSIGN_OR_RETURN(Statement row, database_.Prepare("INSERT INTO jobs(id, body) VALUES(?, ?)"));
  NSA_RETURN_IF_ERROR(row.Bind(1, job.job().id()).BindBlob(2, Seal(job)).Run());
  return database_.last_insert_id();
}

absl::Status JobTable::Write(int64_t number, const v1::StoredJob& job) {
  // Progress is in a separate table, which is written with the records.
  v1::StoredJob body = job;
  body.mutable_job()->clear_progress();
  NSA_ASSIGN_OR_RETURN(Statement row,
                       database_.Prepare("UPDATE jobs SET body = ? WHERE number = ?"));
  NSA_RETURN_IF_ERROR(row.BindBlob(1, Seal(body)).Bind(2, number).Run());
  return WriteProgress(number, job.job().progress());
}

absl::Status JobTable::WriteProgress(int64_t number, const v1::JobProgress& progress) {
  NSA_ASSIGN_OR_RETURN(
      Statement row, database_.Prepare("INSERT OR REPLACE INTO progress(job, body) VALUES(?, ?)"));
  return row.Bind(1, number).BindBlob(2, Seal(progress)).Run();
}

absl::Status JobTable::Erase(int64_t number) {
  for (const char* rows :
       {"DELETE FROM progress WHERE job = ?", "DELETE FROM jobs WHERE number = ?"}) {
    NSA_ASSIGN_OR_RETURN(Statement row, database_.Prepare(rows));
    NSA_RETURN_IF_ERROR(row.Bind(1, number).Run());
  }
  return absl::OkStatus();
}

void JobTable::Remember(int64_t number, JobPtr job) {
  const std::string& id = job->job().id();
  if (const auto before = jobs_.find(id); before != jobs_.end()) {
    --counts_[before->second.job->job().state()];
  } else {
    by_name_[job->job().name()].insert(number);
  }
  numbers_[number] = job;
  sweeps_.Put(number, job);
  ++counts_[job->job().state()];
  const std::string out_dir = RealOutDir(*job);
  if (IsTerminal(job->job().state())) {
    if (active_.erase(number) > 0) out_dirs_.Remove(out_dir);
  } else {
    active_[number] = job;
    out_dirs_.Add(out_dir, id);
  }
  jobs_[id] = {number, std::move(job)};
}

void JobTable::Drop(const std::string& id) {
  const Entry entry = jobs_.at(id);
  const v1::Job& job = entry.job->job();
  --counts_[job.state()];
  numbers_.erase(entry.number);
  sweeps_.Remove(entry.number, job);
  jobs_.erase(job.id());
  deleted_[job.id()] = entry.number;
  const auto named = by_name_.find(job.name());
  named->second.erase(entry.number);
  if (named->second.empty()) by_name_.erase(named);
}

absl::Status NoSuchJob(const std::string& id_or_name) {
  return absl::NotFoundError(absl::StrCat("job: no job has the id or name '",
                                          CutText(id_or_name, 80), "'; `nsactl list` shows them"));
}

std::vector<const JobTable::Entry*> JobTable::Named(const std::string& name,
                                                    const std::string& owner) const {
  std::vector<const Entry*> found;
  const auto named = by_name_.find(name);
  if (named == by_name_.end()) return found;
  for (auto number = named->second.rbegin(); number != named->second.rend(); ++number) {
    const v1::Job& job = numbers_.at(*number)->job();
    if (owner.empty() || job.owner() == owner) found.push_back(&jobs_.at(job.id()));
  }
  return found;
}

const JobTable::Entry* JobTable::ById(const std::string& id, const std::string& owner) const {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return nullptr;
  const Entry& entry = found->second;
  return owner.empty() || entry.job->job().owner() == owner ? &entry : nullptr;
}

absl::StatusOr<const JobTable::Entry*> JobTable::Find(const std::string& id_or_name,
                                                      const std::string& owner,
                                                      v1::JobUse use) const {
  if (const Entry* entry = ById(id_or_name, owner)) return entry;
  const std::vector<const Entry*> named = Named(id_or_name, owner);
  if (named.empty()) return NoSuchJob(id_or_name);
  std::vector<const Entry*> meant;
  std::ranges::copy_if(named, std::back_inserter(meant),
                       [use](const Entry* entry) { return IsFor(use, entry->job->job().state()); });
  if (use == v1::JOB_USE_EDIT && meant.empty()) meant = named;
  if (meant.size() > 1 && use != v1::JOB_USE_UNSPECIFIED) {
    std::vector<const v1::Job*> jobs;
    for (const Entry* entry : meant) jobs.push_back(&entry->job->job());
    return AmbiguousName(id_or_name, jobs);
  }
  return meant.empty() ? named.front() : meant.front();
}

int32_t JobTable::Namesakes(const std::string& id_or_name, const std::string& owner) const {
  if (ById(id_or_name, owner) != nullptr) return 0;
  return std::max(static_cast<int32_t>(Named(id_or_name, owner).size()) - 1, 0);
}

JobTable::Jobs JobTable::All(size_t most_ended) const {
  Jobs jobs{.active = {}, .ended = {}, .count_ended = numbers_.size() - active_.size()};
  jobs.active.reserve(active_.size());
  for (const auto& [number, job] : active_) jobs.active.push_back(job);
  for (auto one = numbers_.rbegin(); one != numbers_.rend(); ++one) {
    if (jobs.ended.size() == most_ended) break;
    if (!active_.contains(one->first)) jobs.ended.push_back(one->second);
  }
  return jobs;
}

absl::StatusOr<JobTable::Page> JobTable::List(int32_t page_size, const std::string& page_token,
                                              const Filter& filter) const {
  if (page_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: ", page_size, " (at least 0); use 0 for the default"));
  }
  const size_t limit = page_size == 0 ? kDefaultPage : std::min(page_size, kLargestPage);
  auto next = numbers_.rbegin();
  if (!page_token.empty()) {
    NSA_ASSIGN_OR_RETURN(const int64_t before, ParsePageToken(page_token));
    next = std::make_reverse_iterator(numbers_.lower_bound(before));
  }
  Page page;
  size_t bytes = 0;
  for (; next != numbers_.rend(); ++next) {
    const JobPtr& job = next->second;
    if (!IsWanted(job->job(), filter)) continue;
    if (page.jobs.size() == limit || bytes > limits::kPageBytes) {
      page.next_page_token = absl::StrCat("n", std::prev(next)->first);
      break;
    }
    bytes += job->job().ByteSizeLong();
    page.jobs.push_back(job);
  }
  return page;
}

std::vector<JobPtr> JobTable::EndedBefore(absl::Time when, size_t limit) const {
  const int64_t before = absl::ToUnixNanos(when);
  std::vector<JobPtr> ended;
  for (const auto& [id, entry] : jobs_) {
    const v1::Job& job = entry.job->job();
    const bool ended_then = job.end_unix_nanos() > 0 && job.end_unix_nanos() < before;
    if (IsTerminal(job.state()) && ended_then) ended.push_back(entry.job);
  }
  const size_t count = std::min(limit, ended.size());
  std::ranges::partial_sort(ended, ended.begin() + static_cast<std::ptrdiff_t>(count), {},
                            [](const JobPtr& job) {
                              return std::make_pair(job->job().end_unix_nanos(), job->job().id());
                            });
  ended.resize(count);
  return ended;
}

absl::Status JobTable::CheckOutDir(const v1::StoredJob& stored) const {
  const std::string out_dir = RealOutDir(stored);
  const OutDirs::Taken taken = out_dirs_.Conflict(out_dir, stored.job().id());
  if (taken.job_id.empty()) return absl::OkStatus();
  const std::string how =
      taken.path == out_dir
          ? " is written by job "
          : absl::StrCat(taken.path.size() < out_dir.size() ? " lies in " : " is around ",
                         taken.path, ", which is written by job ");
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        "train.out_dir: ", stored.job().spec().train().out_dir(), how, taken.job_id,
                        " (", StateTitle(jobs_.at(taken.job_id).job->job()),
                        "); choose another out_dir or stop that job")),
                    Reason::kOutDirInUse);
}

}  // namespace nsa::server
