#include "server/store/job_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "server/decide/alert.h"
#include "server/decide/lifecycle.h"
#include "server/decide/progress.h"
#include "server/store/lost_store.h"
#include "server/store/random_id.h"
#include "server/store/sealed.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// Smaller steps wait until they add up to this.
constexpr absl::Duration kClockStep = absl::Seconds(1);

// Moves a time of a job with the wall clock, unless it was noted after the clock was set.
void MoveTime(absl::Duration step, absl::Time now, absl::Duration gap, int64_t* unix_nanos) {
  const absl::Duration age = now - absl::FromUnixNanos(*unix_nanos);
  if (*unix_nanos == 0 || (age >= absl::ZeroDuration() && age <= gap)) return;
  *unix_nanos += absl::ToInt64Nanoseconds(step);
}

void MoveTimes(absl::Duration step, absl::Time now, absl::Duration gap, v1::StoredJob* job) {
  int64_t state = job->state_unix_nanos();
  int64_t queued = job->queued_unix_nanos();
  MoveTime(step, now, gap, &state);
  MoveTime(step, now, gap, &queued);
  job->set_state_unix_nanos(state);
  job->set_queued_unix_nanos(queued);
  // A duration from the submit moves with the clock, a time of day does not.
  if (job->job().spec().not_before().starts_with('+')) {
    int64_t start = job->job().not_before_unix_nanos();
    MoveTime(step, now, gap, &start);
    job->mutable_job()->set_not_before_unix_nanos(start);
  }
  for (int64_t& restart : *job->mutable_counted_restart_unix_nanos()) {
    MoveTime(step, now, gap, &restart);
  }
}

// A newer worker may report a reason that is not in our table: it then begins the text.
std::vector<v1::JobEvent> EventsOf(const v1::ReportRecordsRequest& request,
                                   const std::vector<v1::WorkerRecord>& records) {
  std::vector<v1::JobEvent> events;
  for (const v1::WorkerRecord& record : records) {
    if (!record.has_event()) continue;
    v1::JobEvent& event = events.emplace_back();
    event.set_unix_nanos(record.unix_nanos());
    const std::string& reason = record.event().reason();
    const bool known = ReasonFromWord(reason).has_value();
    event.set_reason(known ? reason : "OTHER");
    event.set_text(known ? record.event().text()
                         : absl::StrCat(CutText(reason, limits::kReportedWordBytes), ": ",
                                        record.event().text()));
    event.set_severity(record.event().severity());
    event.set_generation(request.generation());
    event.set_rank(request.rank());
  }
  return events;
}

// Adds what records of rank 0 in the present generation say to the job's progress. Returns the
// alerts that they raise.
std::vector<v1::JobEvent> FoldAll(const std::vector<v1::WorkerRecord>& records,
                                  const std::vector<v1::GpuInfo>& gpus, v1::Job* job) {
  std::vector<v1::JobEvent> events;
  const v1::JobSpec& spec = job->spec();
  const int64_t last = LastStep(spec, job->stop());
  v1::JobProgress& progress = *job->mutable_progress();
  for (const v1::WorkerRecord& record : records) {
    FoldData(record, spec.data(), &progress);
    Fold(record, spec.train(), last, &progress);
    FoldHealth(record, spec, &progress);
    for (v1::JobEvent& event : FoldAlerts(record, gpus, spec, &progress)) {
      event.set_generation(job->generation());
      events.push_back(std::move(event));
    }
  }
  return events;
}

// The fingerprint that is stored with a deletion's request id. It differs from every fingerprint of
// a submit.
std::string FingerprintOf(const std::string& id_or_name) {
  return absl::StrCat("delete ", id_or_name);
}

// Adds to an error of opening the store what to do about it.
absl::Status OpenError(const std::filesystem::path& path, const absl::Status& status) {
  if (absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status)) return status;
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(
        absl::StrCat("job store: ", status.message(),
                     "; another program writes to it: end that program, then start again"));
  }
  if (absl::IsPermissionDenied(status)) {
    return absl::PermissionDeniedError(
        absl::StrCat("job store: ", status.message(), "; check who owns the file and its folder"));
  }
  if (IsIoError(status)) {
    return absl::InternalError(absl::StrCat(
        "job store: ", status.message(),
        "; the file system failed, which does not mean that the store is damaged: check the disk "
        "(dmesg, smartctl -a), then start again"));
  }
  return absl::DataLossError(absl::StrCat(
      "job store: ", path.string(), " is damaged (", status.message(),
      "); put a backup back with `nsactl admin restore`. To start with an empty store, which knows "
      "no job: move it and its -wal and -shm files away, then nsa-coordinator --new-store"));
}

}  // namespace

JobStore::JobStore(std::unique_ptr<Database> database, const Clock& clock, Observer observer)
    : clock_(clock),
      observer_(std::move(observer)),
      database_(std::move(database)),
      jobs_(*database_),
      events_(*database_, clock),
      requests_(*database_, clock),
      records_(*database_),
      curves_(*database_, records_),
      gpu_time_(*database_) {}

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const std::filesystem::path& state_dir,
                                                         const Clock& clock, Observer observer) {
  return OpenIn(state_dir, clock, std::move(observer), /*make_new=*/false);
}

absl::Status JobStore::MakeNew(const std::filesystem::path& state_dir, const Clock& clock) {
  NSA_RETURN_IF_ERROR(CheckHasNoStore(state_dir));
  return OpenIn(state_dir, clock, {}, /*make_new=*/true).status();
}

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::OpenIn(const std::filesystem::path& state_dir,
                                                           const Clock& clock, Observer observer,
                                                           bool make_new) {
  const std::filesystem::path path = state_dir / kFileName;
  if (!make_new && HasNoStore(state_dir)) NSA_RETURN_IF_ERROR(CheckMayBeNew(state_dir));
  auto database = Database::Open(path);
  if (!database.ok()) return OpenError(path, database.status());
  std::unique_ptr<JobStore> store(new JobStore(*std::move(database), clock, std::move(observer)));
  MutexLock lock(&store->mutex_);
  const absl::StatusOr<int64_t> version = PrepareFile(*store->database_);
  if (!version.ok()) return OpenError(path, version.status());
  if (!make_new && *version == 0) NSA_RETURN_IF_ERROR(CheckMayBeNew(state_dir));
  const absl::Status status = store->Load(*version);
  if (!status.ok()) return OpenError(path, status);
  return store;
}

absl::Status JobStore::Load(int64_t version) {
  NSA_RETURN_IF_ERROR(Migrate(*database_, version, requests_, curves_));
  // Not an error of the start: the store works as it is.
  const absl::Status made = MakeShrinkable(*database_);
  if (!made.ok()) spdlog::warn("job store: cannot be made to shrink: {}", made.ToString());
  NSA_RETURN_IF_ERROR(Identify());
  NSA_RETURN_IF_ERROR(curves_.LoadNames());
  NSA_RETURN_IF_ERROR(jobs_.Load());
  return gpu_time_.Load();
}

absl::Status JobStore::Identify() {
  NSA_ASSIGN_OR_RETURN(Statement row, database_->Prepare("SELECT body FROM identity"));
  NSA_ASSIGN_OR_RETURN(const bool found, row.Step());
  v1::StoredIdentity identity;
  if (found) {
    NSA_RETURN_IF_ERROR(Annotate(Unseal(row.Blob(0), &identity), "identity"));
  } else {
    identity.set_id(RandomId("s"));
    NSA_ASSIGN_OR_RETURN(Statement add,
                         database_->Prepare("INSERT INTO identity(row, body) VALUES(1, ?)"));
    NSA_RETURN_IF_ERROR(add.BindBlob(1, Seal(identity)).Run());
  }
  id_ = identity.id();
  return absl::OkStatus();
}

void JobStore::Remember(const Entry& entry) {
  if (IsTerminal(entry.job->job().state())) ForgetEnds(entry.number);
  jobs_.Remember(entry.number, entry.job);
}

// Where a job's journals and curves continue. Of jobs that have ended it is read again when it is
// needed.
void JobStore::ForgetEnds(int64_t number) {
  records_.ForgetJournals(number);
  curves_.Unload(number);
}

absl::StatusOr<JobPtr> JobStore::Find(const std::string& id_or_name, const std::string& owner,
                                      v1::JobUse use) const {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, jobs_.Find(id_or_name, owner, use));
  return entry->job;
}

int32_t JobStore::Namesakes(const std::string& id_or_name, const std::string& owner) const {
  MutexLock lock(&mutex_);
  return jobs_.Namesakes(id_or_name, owner);
}

absl::StatusOr<JobStore::Page> JobStore::List(int32_t page_size, const std::string& page_token,
                                              const Filter& filter) const {
  MutexLock lock(&mutex_);
  return jobs_.List(page_size, page_token, filter);
}

absl::StatusOr<JobPtr> JobStore::FindRequest(const std::string& request_id,
                                             const std::string& fingerprint) const {
  MutexLock lock(&mutex_);
  return FindRequestLocked(request_id, fingerprint);
}

absl::StatusOr<JobPtr> JobStore::FindRequestLocked(const std::string& request_id,
                                                   const std::string& fingerprint) const {
  NSA_ASSIGN_OR_RETURN(const std::string job_id, requests_.Find(request_id, fingerprint));
  if (job_id.empty()) return nullptr;
  if (const Entry* entry = jobs_.ById(job_id)) return entry->job;
  // The sender may not have received the first answer and tries again. A job that was deleted
  // must not come back because of that.
  return absl::NotFoundError(absl::StrCat("request_id: ", request_id, " (that of job ", job_id,
                                          ", which has been deleted); choose a new one"));
}

absl::StatusOr<JobStore::Inserted> JobStore::Insert(v1::StoredJob job,
                                                    const std::string& request_id,
                                                    const std::string& fingerprint,
                                                    v1::JobEvent event) {
  const std::string id = job.job().id();
  absl::StatusOr<Inserted> inserted;
  {
    MutexLock lock(&mutex_);
    inserted = InsertLocked(std::move(job), request_id, fingerprint, std::move(event));
  }
  if (inserted.ok() && inserted->created && observer_.moved) {
    observer_.moved(v1::Job::STATE_UNSPECIFIED, *inserted->job);
  }
  ReportIfFailed(inserted.status(), "insert", id);
  return inserted;
}

absl::StatusOr<JobStore::Inserted> JobStore::InsertLocked(v1::StoredJob job,
                                                          const std::string& request_id,
                                                          const std::string& fingerprint,
                                                          v1::JobEvent event) {
  NSA_ASSIGN_OR_RETURN(JobPtr known, FindRequestLocked(request_id, fingerprint));
  if (known != nullptr) return Inserted{.job = std::move(known), .created = false};
  NSA_RETURN_IF_ERROR(jobs_.CheckOutDir(job));
  NSA_RETURN_IF_ERROR(jobs_.sweeps().Check(job.job()));
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_ASSIGN_OR_RETURN(const int64_t number, jobs_.Insert(job));
  NSA_RETURN_IF_ERROR(events_.Write(number, job.job(), {std::move(event)}));
  NSA_RETURN_IF_ERROR(requests_.Write(request_id, fingerprint, job.job().id()));
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  auto stored = std::make_shared<const v1::StoredJob>(std::move(job));
  Remember({number, stored});
  return Inserted{.job = std::move(stored), .created = true};
}

absl::StatusOr<JobPtr> JobStore::Update(const std::string& job_id, const Change& change,
                                        const Request& request) {
  absl::StatusOr<JobPtr> updated;
  v1::Job::State from = v1::Job::STATE_UNSPECIFIED;
  {
    MutexLock lock(&mutex_);
    if (const Entry* before = jobs_.ById(job_id)) from = before->job->job().state();
    updated = UpdateLocked(job_id, change, request);
  }
  if (updated.ok() && (*updated)->job().state() != from && observer_.moved) {
    observer_.moved(from, **updated);
  }
  ReportIfFailed(updated.status(), "update", job_id);
  return updated;
}

absl::StatusOr<JobPtr> JobStore::UpdateLocked(const std::string& job_id, const Change& change,
                                              const Request& request) {
  NSA_ASSIGN_OR_RETURN(JobPtr known, FindRequestLocked(request.id, request.fingerprint));
  if (known != nullptr) return known;
  NSA_ASSIGN_OR_RETURN(const Entry* entry, jobs_.Find(job_id));
  const int64_t number = entry->number;
  auto job = std::make_shared<v1::StoredJob>(*entry->job);
  std::vector<v1::JobEvent> events;
  NSA_RETURN_IF_ERROR(change(job.get(), &events));
  if (IsTerminal(entry->job->job().state()) && !IsTerminal(job->job().state())) {
    NSA_RETURN_IF_ERROR(jobs_.CheckOutDir(*job));
  }
  const std::string& owner = job->job().owner();
  const GpuHours ran = GpuHoursAdded(*entry->job, *job, clock_.Wall());
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_RETURN_IF_ERROR(jobs_.Write(number, *job));
  NSA_RETURN_IF_ERROR(gpu_time_.Write(owner, ran));
  NSA_RETURN_IF_ERROR(events_.Write(number, job->job(), std::move(events)));
  NSA_RETURN_IF_ERROR(requests_.Write(request.id, request.fingerprint, job->job().id()));
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  gpu_time_.Remember(owner, ran);
  Remember({number, job});
  return job;
}

absl::StatusOr<absl::Duration> JobStore::FollowClock(const v1::StoredClock& now,
                                                     absl::Duration gap) {
  absl::StatusOr<absl::Duration> step;
  std::vector<std::string> moved;
  {
    MutexLock lock(&mutex_);
    step = FollowClockLocked(now, gap);
    for (const auto& [number, job] : jobs_.active()) moved.push_back(job->job().id());
  }
  if (step.ok() && *step != absl::ZeroDuration() && observer_.changed) {
    for (const std::string& id : moved) observer_.changed(id);
  }
  ReportIfFailed(step.status(), "clock", "");
  return step;
}

absl::StatusOr<absl::Duration> JobStore::FollowClockLocked(const v1::StoredClock& now,
                                                           absl::Duration gap) {
  NSA_ASSIGN_OR_RETURN(Statement row, database_->Prepare("SELECT body FROM clock"));
  NSA_ASSIGN_OR_RETURN(const bool found, row.Step());
  v1::StoredClock before;
  if (found) NSA_RETURN_IF_ERROR(Annotate(Unseal(row.Blob(0), &before), "clock"));
  row.Reset();
  absl::Duration step;
  if (before.boot_id() == now.boot_id() && found) {
    step = absl::Nanoseconds(now.zero_unix_nanos() - before.zero_unix_nanos());
    if (absl::AbsDuration(step) < kClockStep) return absl::ZeroDuration();
  }
  std::vector<Entry> changed;
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  for (const auto& [number, job] : jobs_.active()) {
    if (step == absl::ZeroDuration()) break;
    auto copy = std::make_shared<v1::StoredJob>(*job);
    MoveTimes(step, clock_.Wall(), gap, copy.get());
    NSA_RETURN_IF_ERROR(jobs_.Write(number, *copy));
    changed.push_back({number, std::move(copy)});
  }
  NSA_ASSIGN_OR_RETURN(Statement write,
                       database_->Prepare("INSERT OR REPLACE INTO clock(row, body) VALUES(1, ?)"));
  NSA_RETURN_IF_ERROR(write.BindBlob(1, Seal(now)).Run());
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  for (const Entry& entry : changed) Remember(entry);
  return step;
}

absl::StatusOr<JobStore::Appended> JobStore::AppendRecords(const v1::ReportRecordsRequest& request,
                                                           const std::vector<v1::GpuInfo>& gpus) {
  absl::StatusOr<Appended> appended;
  {
    MutexLock lock(&mutex_);
    appended = AppendLocked(request, gpus);
    const Entry* entry = jobs_.ById(request.job_id());
    // Nothing was committed: the end of the curve is read again.
    if (entry != nullptr && !appended.ok()) curves_.Unload(entry->number);
    // An agent that sends the records of an ended job again has made its journals be read.
    if (entry != nullptr && IsTerminal(entry->job->job().state())) ForgetEnds(entry->number);
  }
  if (!appended.ok() || !appended->fresh.empty()) {
    ReportIfFailed(appended.status(), "append", request.job_id());
  }
  return appended;
}

absl::StatusOr<JobStore::Appended> JobStore::AppendLocked(const v1::ReportRecordsRequest& request,
                                                          const std::vector<v1::GpuInfo>& gpus) {
  NSA_ASSIGN_OR_RETURN(const Entry* entry, jobs_.Find(request.job_id()));
  const int64_t number = entry->number;
  NSA_RETURN_IF_ERROR(CheckPlace(request, entry->job->job()));
  NSA_ASSIGN_OR_RETURN(
      RankJournal * journal,
      records_.Journal(number, entry->job->job(), request.generation(), request.rank()));
  Appended appended{
      .next_sequence = journal->next_sequence,
      .fresh = FreshRecords(request, entry->job->job().spec(), journal->next_sequence),
      .current = request.generation() == entry->job->job().generation(),
      .job = entry->job};
  if (appended.fresh.empty()) return appended;

  const bool moves = appended.current && request.rank() == 0;
  auto job = std::make_shared<v1::StoredJob>(*entry->job);
  std::vector<v1::JobEvent> events = EventsOf(request, appended.fresh);
  if (moves) {
    std::ranges::move(FoldAll(appended.fresh, gpus, job->mutable_job()),
                      std::back_inserter(events));
  }
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  if (moves) {
    NSA_RETURN_IF_ERROR(curves_.Add(number, request.generation(), appended.fresh, gpus));
    NSA_RETURN_IF_ERROR(jobs_.WriteProgress(number, job->job().progress()));
  }
  NSA_RETURN_IF_ERROR(records_.Write(number, request, appended.fresh));
  NSA_RETURN_IF_ERROR(events_.Write(number, job->job(), std::move(events)));
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  for (const auto& record : appended.fresh) journal->Add(record);
  appended.next_sequence = journal->next_sequence;
  Remember({number, job});
  appended.job = std::move(job);
  return appended;
}

absl::StatusOr<RankJournal> JobStore::Journal(const std::string& job_id, int64_t generation,
                                              int32_t rank) const {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, jobs_.Find(job_id));
  const v1::Job& job = entry->job->job();
  NSA_ASSIGN_OR_RETURN(const RankJournal* kept,
                       records_.Journal(entry->number, job, generation, rank));
  RankJournal journal = *kept;
  if (IsTerminal(job.state())) records_.ForgetJournals(entry->number);
  return journal;
}

absl::StatusOr<std::vector<v1::WatchRecordsResponse>> JobStore::Records(const std::string& job_id,
                                                                        int32_t rank,
                                                                        int64_t after_position,
                                                                        int limit,
                                                                        size_t most_bytes) const {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, jobs_.Find(job_id));
  return records_.Read(entry->number, rank, after_position, limit, most_bytes);
}

absl::StatusOr<int64_t> JobStore::TailPosition(const std::string& job_id, int32_t rank,
                                               int count) const {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, jobs_.Find(job_id));
  return records_.TailPosition(entry->number, rank, count);
}

absl::StatusOr<std::vector<v1::JobEvent>> JobStore::Events(const std::string& job_id,
                                                           int64_t after_sequence, int limit,
                                                           size_t most_bytes) const {
  MutexLock lock(&mutex_);
  int64_t number = 0;
  if (!job_id.empty()) {
    NSA_ASSIGN_OR_RETURN(const Entry* entry, jobs_.Find(job_id));
    number = entry->number;
  }
  return events_.Read(number, jobs_.deleted(), after_sequence, limit, most_bytes);
}

absl::StatusOr<int64_t> JobStore::LastEvent() const {
  MutexLock lock(&mutex_);
  return events_.Last();
}

// Only the tails of active jobs stay in memory.
absl::StatusOr<int64_t> JobStore::DrawnNumberOf(const std::string& job_id) {
  NSA_ASSIGN_OR_RETURN(const Entry* entry, jobs_.Find(job_id));
  if (curves_.IsLoaded(entry->number)) return entry->number;
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_RETURN_IF_ERROR(curves_.Load(entry->number));
  const absl::Status committed = transaction.Commit();
  if (!committed.ok() || IsTerminal(entry->job->job().state())) curves_.Unload(entry->number);
  NSA_RETURN_IF_ERROR(committed);
  return entry->number;
}

absl::StatusOr<std::vector<v1::CurveBucket>> JobStore::Buckets(const std::string& job_id,
                                                               CurveKind kind, int64_t from_step) {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const int64_t number, DrawnNumberOf(job_id));
  return curves_.Buckets(number, kind, from_step);
}

absl::StatusOr<std::vector<v1::WorkerRecord>> JobStore::Marks(const std::string& job_id,
                                                              CurveKind kind) {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const int64_t number, DrawnNumberOf(job_id));
  return curves_.Marks(number, kind);
}

absl::StatusOr<JobStore::Samples> JobStore::SamplesAt(const std::string& job_id, int64_t step) {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const int64_t number, DrawnNumberOf(job_id));
  return curves_.SamplesAt(number, step);
}

// A job is first marked as deleted, in one small transaction. This is acknowledged to the caller,
// and from then on the job is no longer in memory. Its rows, which may be many, are removed a few
// at a time and its own row last, so that after a restart in between the mark is found and the
// removal continues.
absl::StatusOr<JobStore::Deleted> JobStore::Delete(const std::string& id_or_name, DeletedBy by,
                                                   const std::string& request_id,
                                                   const std::string& owner,
                                                   const JobPtr& unchanged) {
  absl::StatusOr<Deleted> deleted;
  {
    MutexLock lock(&mutex_);
    deleted = DeleteLocked(id_or_name, request_id, owner, unchanged);
  }
  const bool known = deleted.ok() && deleted->job == nullptr;
  if (known) return deleted;
  if (deleted.ok() && observer_.deleted) observer_.deleted(*deleted->job, by);
  ReportIfFailed(deleted.status(), "delete", deleted.ok() ? deleted->job_id : id_or_name);
  return deleted;
}

absl::StatusOr<JobStore::Deleted> JobStore::DeleteLocked(const std::string& id_or_name,
                                                         const std::string& request_id,
                                                         const std::string& owner,
                                                         const JobPtr& unchanged) {
  const std::string fingerprint = FingerprintOf(id_or_name);
  NSA_ASSIGN_OR_RETURN(const std::string known, requests_.Find(request_id, fingerprint));
  if (!known.empty()) return Deleted{.job_id = known, .job = nullptr};
  NSA_ASSIGN_OR_RETURN(const Entry* entry, jobs_.Find(id_or_name, owner, v1::JOB_USE_ENDED));
  const JobPtr job = entry->job;
  const std::string id = job->job().id();
  if (unchanged != nullptr && job != unchanged) {
    return absl::AbortedError(
        absl::StrCat("job: ", id, " has changed meanwhile; look at it again before you delete it"));
  }
  if (!IsTerminal(job->job().state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("state: job ", id, " is ", StateTitle(job->job()),
                     " and can be deleted only when it has ended; end it with `nsactl stop ", id,
                     "`, then delete it"));
  }
  v1::StoredJob marked = *job;
  marked.set_deleted(true);
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_RETURN_IF_ERROR(jobs_.Write(entry->number, marked));
  NSA_RETURN_IF_ERROR(requests_.Write(request_id, fingerprint, id));
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  ForgetEnds(entry->number);
  jobs_.Drop(id);
  return Deleted{.job_id = id, .job = job};
}

std::vector<JobPtr> JobStore::EndedBefore(absl::Time when, size_t limit) const {
  MutexLock lock(&mutex_);
  return jobs_.EndedBefore(when, limit);
}

std::string JobStore::NextToPurge(const std::set<std::string>& but) const {
  MutexLock lock(&mutex_);
  const auto next = std::ranges::find_if(
      jobs_.deleted(), [&](const auto& entry) { return !but.contains(entry.first); });
  return next == jobs_.deleted().end() ? "" : next->first;
}

void JobStore::ReportNotRemoved(const std::string& job_id, const absl::Status& status) const {
  ReportIfFailed(status, "delete", job_id);
}

absl::StatusOr<bool> JobStore::Purge(const std::string& job_id, int rows) {
  absl::StatusOr<bool> empty;
  {
    MutexLock lock(&mutex_);
    empty = PurgeLocked(job_id, rows);
  }
  if (!empty.ok()) ReportIfFailed(empty.status(), "delete", job_id);
  return empty;
}

absl::StatusOr<bool> JobStore::PurgeLocked(const std::string& job_id, int rows) {
  const auto job = jobs_.deleted().find(job_id);
  if (job == jobs_.deleted().end()) return true;
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  int64_t left = rows;
  for (const char* purge : {RecordTable::kPurge, EventTable::kPurge, CurvePointTable::kPurge}) {
    NSA_ASSIGN_OR_RETURN(Statement some, database_->Prepare(purge));
    NSA_RETURN_IF_ERROR(some.Bind(1, job->second).Bind(2, left).Run());
    left -= database_->changes();
  }
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  return left > 0;
}

absl::Status JobStore::Forget(const std::string& job_id) {
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    status = ForgetLocked(job_id);
  }
  if (!status.ok()) ReportIfFailed(status, "delete", job_id);
  return status;
}

absl::Status JobStore::ForgetLocked(const std::string& job_id) {
  const auto job = jobs_.deleted().find(job_id);
  if (job == jobs_.deleted().end()) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_RETURN_IF_ERROR(jobs_.Erase(job->second));
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  jobs_.Forget(job_id);
  return absl::OkStatus();
}

absl::StatusOr<bool> JobStore::Tidy(absl::Time now, int rows) {
  absl::StatusOr<bool> done;
  {
    MutexLock lock(&mutex_);
    done = TidyLocked(now, rows);
  }
  if (!done.ok()) ReportIfFailed(done.status(), "delete", "");
  return done;
}

absl::StatusOr<bool> JobStore::TidyLocked(absl::Time now, int rows) {
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_ASSIGN_OR_RETURN(const int64_t gone, requests_.Forget(now, rows));
  if (gone < rows) NSA_RETURN_IF_ERROR(gpu_time_.Forget(now));
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  return gone < rows;
}

absl::StatusOr<bool> JobStore::Shrink(int pages) {
  absl::StatusOr<bool> done;
  {
    MutexLock lock(&mutex_);
    done = ShrinkLocked(pages);
  }
  if (!done.ok()) ReportIfFailed(done.status(), "shrink", "");
  return done;
}

absl::StatusOr<bool> JobStore::ShrinkLocked(int pages) {
  NSA_ASSIGN_OR_RETURN(const bool small, IsSmall(*database_));
  if (small) return true;
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_RETURN_IF_ERROR(GiveBack(*database_, pages, clock_));
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  return false;
}

absl::StatusOr<JobStore::Size> JobStore::SizeNow() const {
  Size size;
  std::filesystem::path folder;
  {
    MutexLock lock(&mutex_);
    folder = database_->path().parent_path();
    NSA_ASSIGN_OR_RETURN(size, SizeOf(*database_));
  }
  std::error_code error;
  const auto disk = std::filesystem::space(folder, error);
  if (error) return absl::InternalError(absl::StrCat("state folder: ", error.message()));
  size.disk_bytes = static_cast<int64_t>(disk.capacity);
  size.disk_free_bytes = static_cast<int64_t>(disk.available);
  return size;
}

absl::Status JobStore::Commit(Transaction* transaction) {
  const absl::Duration before = clock_.Monotonic();
  NSA_RETURN_IF_ERROR(transaction->Commit());
  if (observer_.committed) {
    observer_.committed(absl::ToDoubleSeconds(clock_.Monotonic() - before));
  }
  return absl::OkStatus();
}

void JobStore::ReportIfFailed(const absl::Status& status, const std::string& operation,
                              const std::string& job_id) const {
  if (status.ok()) {
    if (observer_.changed) observer_.changed(job_id);
    return;
  }
  const bool ours = absl::IsInternal(status) || absl::IsDataLoss(status) ||
                    absl::IsResourceExhausted(status) || absl::IsUnavailable(status) ||
                    absl::IsPermissionDenied(status);
  if (ours && observer_.failed) observer_.failed(operation, status);
}

}  // namespace nsa::server
