#include "server/store/job_store.h"

#include <algorithm>
#include <iterator>
#include <set>
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
#include "server/store/lost_store.h"
#include "server/store/random_id.h"
#include "server/store/sealed.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr int kDefaultPage = 100;
constexpr int kLargestPage = 1'000;

// Of requests, `unix_seconds` and its index were added to version 1 later (AddRequestTimes()).
constexpr char kSchema[] = R"(
  CREATE TABLE jobs(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
                    body BLOB NOT NULL);
  CREATE TABLE progress(job INTEGER PRIMARY KEY, body BLOB NOT NULL);
  CREATE TABLE events(sequence INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL,
                      body BLOB NOT NULL);
  CREATE INDEX events_by_job ON events(job);
  CREATE TABLE requests(id TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, job TEXT NOT NULL,
                        unix_seconds INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
  CREATE INDEX requests_by_time ON requests(unix_seconds);
  CREATE TABLE records(position INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL,
                       generation INTEGER NOT NULL, rank INTEGER NOT NULL,
                       sequence INTEGER NOT NULL, body BLOB NOT NULL,
                       UNIQUE(job, generation, rank, sequence));
  CREATE INDEX records_by_job ON records(job);
)";

// Added to version 1 later; a coordinator without it leaves it alone.
constexpr char kCurveSchema[] = R"(
  CREATE TABLE IF NOT EXISTS curve(row INTEGER PRIMARY KEY, job INTEGER NOT NULL,
                                   kind INTEGER NOT NULL, step INTEGER NOT NULL,
                                   body BLOB NOT NULL);
  CREATE UNIQUE INDEX IF NOT EXISTS curve_by_job ON curve(job, kind, step);
)";

// Added to version 1 later, too. One row, whose body is a StoredIdentity.
constexpr char kIdentitySchema[] =
    "CREATE TABLE IF NOT EXISTS identity(row INTEGER PRIMARY KEY CHECK(row = 1), body BLOB NOT "
    "NULL)";

// The same, with a StoredClock.
constexpr char kClockSchema[] =
    "CREATE TABLE IF NOT EXISTS clock(row INTEGER PRIMARY KEY CHECK(row = 1), body BLOB NOT NULL)";

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

// Each column of each table, and each index.
absl::StatusOr<std::set<std::string>> PartsOf(Database& database) {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database.Prepare("SELECT 'the column ' || m.name || '.' || c.name || ' ' || c.type || "
                       "CASE WHEN c.pk THEN ' of the key' ELSE '' END "
                       "FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' "
                       "UNION SELECT 'the index ' || name || ' of ' || tbl_name "
                       "FROM sqlite_master WHERE type = 'index'"));
  std::set<std::string> parts;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return parts;
    parts.insert(rows.Text(0));
  }
}

// DataLoss unless the store has all that a new one has; more is of a newer program.
absl::Status CheckSchema(Database& store) {
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<Database> fresh, Database::Open(":memory:"));
  for (const char* schema :
       {kSchema, kCurveSchema, kIdentitySchema, kClockSchema, GpuTimeTable::kSchema}) {
    NSA_RETURN_IF_ERROR(fresh->Execute(schema));
  }
  NSA_ASSIGN_OR_RETURN(const std::set<std::string> wanted, PartsOf(*fresh));
  NSA_ASSIGN_OR_RETURN(const std::set<std::string> parts, PartsOf(store));
  for (const std::string& part : wanted) {
    if (!parts.contains(part)) return absl::DataLossError(absl::StrCat(part, " is missing"));
  }
  return absl::OkStatus();
}

// Adds to an error of opening the store what to do about it.
absl::Status OpenError(const std::filesystem::path& path, const absl::Status& status) {
  if (absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status)) return status;
  if (absl::IsPermissionDenied(status)) {
    return absl::PermissionDeniedError(
        absl::StrCat("job store: ", status.message(), "; check who owns the file and its folder"));
  }
  return absl::DataLossError(absl::StrCat(
      "job store: ", path.string(), " is damaged (", status.message(),
      "); put a backup back with 'nsactl admin restore'. To start with an empty store, which knows "
      "no job: move it and its -wal and -shm files away, then nsa-coordinator --new-store"));
}

// The out_dir by which jobs are compared.
std::string RealOutDir(const v1::StoredJob& stored) {
  if (!stored.out_dir_real().empty()) return stored.out_dir_real();
  const std::filesystem::path path = stored.job().spec().train().out_dir();
  const std::filesystem::path normal = path.lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

bool IsWanted(const v1::Job& job, const JobStore::Filter& filter) {
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

JobStore::JobStore(std::unique_ptr<Database> database, const Clock& clock, Observer observer)
    : clock_(clock), observer_(std::move(observer)), database_(std::move(database)) {}

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
  const absl::StatusOr<int64_t> version = store->Version();
  if (!version.ok()) return OpenError(path, version.status());
  if (!make_new && *version == 0) NSA_RETURN_IF_ERROR(CheckMayBeNew(state_dir));
  absl::Status status = store->Migrate(*version);
  if (status.ok()) {
    // Not an error of the start: the store works as it is.
    const absl::Status made = store->MakeShrinkable();
    if (!made.ok()) spdlog::warn("job store: cannot be made to shrink: {}", made.ToString());
  }
  if (status.ok()) status = store->Identify();
  if (status.ok()) status = store->Load();
  if (status.ok()) status = store->gpu_time_.Load(*store->database_);
  if (!status.ok()) return OpenError(path, status);
  return store;
}

absl::StatusOr<int64_t> JobStore::Version() {
  NSA_ASSIGN_OR_RETURN(const int64_t pages, database_->QueryInt("PRAGMA page_count"));
  if (pages == 0) NSA_RETURN_IF_ERROR(database_->Execute("PRAGMA auto_vacuum=INCREMENTAL"));
  NSA_RETURN_IF_ERROR(database_->Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"));
  return database_->QueryInt("PRAGMA user_version");
}

absl::Status JobStore::Migrate(int64_t version) {
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "job store: %s has version %d (at most %d); start the newer nsa-coordinator that wrote it",
        database_->path().string(), version, kSchemaVersion));
  }
  if (version < 0) return absl::DataLossError(absl::StrCat("version ", version));
  if (version == 0) {
    NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
    NSA_RETURN_IF_ERROR(database_->Execute(kSchema));
    NSA_RETURN_IF_ERROR(database_->Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion)));
    NSA_RETURN_IF_ERROR(transaction.Commit());
  }
  NSA_RETURN_IF_ERROR(AddRequestTimes());
  NSA_RETURN_IF_ERROR(database_->Execute(kCurveSchema));
  NSA_RETURN_IF_ERROR(database_->Execute(kIdentitySchema));
  NSA_RETURN_IF_ERROR(database_->Execute(kClockSchema));
  NSA_RETURN_IF_ERROR(database_->Execute(GpuTimeTable::kSchema));
  NSA_RETURN_IF_ERROR(CheckSchema(*database_));
  // Records are checked when they are read: checking them all would take long in a large store.
  for (const char* table : {"jobs", "progress", "events", "requests"}) {
    NSA_ASSIGN_OR_RETURN(const std::string result,
                         database_->QueryText(absl::StrCat("PRAGMA quick_check(", table, ")")));
    if (result != "ok") return absl::DataLossError(result);
  }
  return absl::OkStatus();
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

absl::Status JobStore::Load() {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_->Prepare("SELECT jobs.number, jobs.id, jobs.body, progress.body FROM jobs "
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

void JobStore::Remember(int64_t number, JobPtr job) {
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
    journals_.erase(id);
    curves_.erase(id);
  } else {
    active_[number] = job;
    out_dirs_.Add(out_dir, id);
  }
  jobs_[id] = {number, std::move(job)};
}

// The opposite of Remember().
void JobStore::Drop(const std::string& job_id) {
  const Entry entry = jobs_.at(job_id);
  const v1::Job& job = entry.job->job();
  --counts_[job.state()];
  numbers_.erase(entry.number);
  journals_.erase(job.id());
  curves_.erase(job.id());
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

std::vector<const JobStore::Entry*> JobStore::Named(const std::string& name,
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

absl::StatusOr<const JobStore::Entry*> JobStore::FindEntry(const std::string& id_or_name,
                                                           const std::string& owner,
                                                           v1::JobUse use) const {
  const auto by_id = jobs_.find(id_or_name);
  if (by_id != jobs_.end() && (owner.empty() || by_id->second.job->job().owner() == owner)) {
    return &by_id->second;
  }
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

absl::StatusOr<JobPtr> JobStore::Find(const std::string& id_or_name, const std::string& owner,
                                      v1::JobUse use) const {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(id_or_name, owner, use));
  return entry->job;
}

int32_t JobStore::Namesakes(const std::string& id_or_name, const std::string& owner) const {
  MutexLock lock(&mutex_);
  const auto by_id = jobs_.find(id_or_name);
  if (by_id != jobs_.end() && (owner.empty() || by_id->second.job->job().owner() == owner)) {
    return 0;
  }
  return std::max(static_cast<int32_t>(Named(id_or_name, owner).size()) - 1, 0);
}

std::vector<JobPtr> JobStore::Active() const {
  MutexLock lock(&mutex_);
  std::vector<JobPtr> jobs;
  jobs.reserve(active_.size());
  for (const auto& [number, job] : active_) jobs.push_back(job);
  return jobs;
}

absl::StatusOr<JobStore::Page> JobStore::List(int32_t page_size, const std::string& page_token,
                                              const Filter& filter) const {
  if (page_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: ", page_size, " (at least 0); use 0 for the default"));
  }
  const size_t limit = page_size == 0 ? kDefaultPage : std::min(page_size, kLargestPage);
  MutexLock lock(&mutex_);
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

absl::StatusOr<JobPtr> JobStore::FindRequest(const std::string& request_id,
                                             const std::string& fingerprint) const {
  MutexLock lock(&mutex_);
  return FindRequestLocked(request_id, fingerprint);
}

absl::StatusOr<JobPtr> JobStore::FindRequestLocked(const std::string& request_id,
                                                   const std::string& fingerprint) const {
  if (request_id.empty()) return nullptr;
  NSA_ASSIGN_OR_RETURN(Statement row,
                       database_->Prepare("SELECT fingerprint, job FROM requests WHERE id = ?"));
  NSA_ASSIGN_OR_RETURN(const bool found, row.Bind(1, request_id).Step());
  if (!found) return nullptr;
  if (row.Text(0) != fingerprint) {
    return absl::AlreadyExistsError(absl::StrCat("request_id: ", request_id,
                                                 " (that of another request, about job ",
                                                 row.Text(1), "); choose a new one"));
  }
  const auto entry = jobs_.find(row.Text(1));
  if (entry == jobs_.end()) {
    // The sender may not have received the first answer and tries again. A job that was deleted
    // must not come back because of that.
    return absl::NotFoundError(absl::StrCat("request_id: ", request_id, " (that of job ",
                                            row.Text(1),
                                            ", which has been deleted); choose a new one"));
  }
  return entry->second.job;
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
  NSA_RETURN_IF_ERROR(CheckOutDir(job));
  NSA_RETURN_IF_ERROR(sweeps_.Check(job.job()));
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_ASSIGN_OR_RETURN(Statement row,
                       database_->Prepare("INSERT INTO jobs(id, body) VALUES(?, ?)"));
  NSA_RETURN_IF_ERROR(row.Bind(1, job.job().id()).BindBlob(2, Seal(job)).Run());
  const int64_t number = database_->last_insert_id();
  NSA_RETURN_IF_ERROR(WriteEvent(number, job.job(), std::move(event)));
  if (!request_id.empty()) {
    NSA_RETURN_IF_ERROR(WriteRequest(request_id, fingerprint, job.job().id()));
  }
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  auto stored = std::make_shared<const v1::StoredJob>(std::move(job));
  Remember(number, stored);
  return Inserted{.job = std::move(stored), .created = true};
}

absl::Status JobStore::CheckOutDir(const v1::StoredJob& stored) const {
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

absl::StatusOr<JobPtr> JobStore::Update(const std::string& job_id, const Change& change,
                                        const Request& request) {
  absl::StatusOr<JobPtr> updated;
  State from = v1::Job::STATE_UNSPECIFIED;
  {
    MutexLock lock(&mutex_);
    if (const auto before = jobs_.find(job_id); before != jobs_.end()) {
      from = before->second.job->job().state();
    }
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
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(job_id));
  const int64_t number = entry->number;
  auto job = std::make_shared<v1::StoredJob>(*entry->job);
  std::vector<v1::JobEvent> events;
  NSA_RETURN_IF_ERROR(change(job.get(), &events));
  if (IsTerminal(entry->job->job().state()) && !IsTerminal(job->job().state())) {
    NSA_RETURN_IF_ERROR(CheckOutDir(*job));
  }
  const std::string& owner = job->job().owner();
  const GpuHours ran = GpuHoursAdded(*entry->job, *job, clock_.Wall());
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_RETURN_IF_ERROR(WriteJob(number, *job));
  NSA_RETURN_IF_ERROR(GpuTimeTable::Write(*database_, owner, ran));
  for (v1::JobEvent& event : events) {
    NSA_RETURN_IF_ERROR(WriteEvent(number, job->job(), std::move(event)));
  }
  if (!request.id.empty()) {
    NSA_RETURN_IF_ERROR(WriteRequest(request.id, request.fingerprint, job->job().id()));
  }
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  gpu_time_.Remember(owner, ran);
  Remember(number, job);
  return job;
}

absl::StatusOr<absl::Duration> JobStore::FollowClock(const v1::StoredClock& now,
                                                     absl::Duration gap) {
  absl::StatusOr<absl::Duration> step;
  std::vector<std::string> moved;
  {
    MutexLock lock(&mutex_);
    step = FollowClockLocked(now, gap);
    for (const auto& [number, job] : active_) moved.push_back(job->job().id());
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
  std::vector<std::pair<int64_t, std::shared_ptr<v1::StoredJob>>> changed;
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  for (const auto& [number, job] : active_) {
    if (step == absl::ZeroDuration()) break;
    auto copy = std::make_shared<v1::StoredJob>(*job);
    MoveTimes(step, clock_.Wall(), gap, copy.get());
    NSA_RETURN_IF_ERROR(WriteJob(number, *copy));
    changed.emplace_back(number, std::move(copy));
  }
  NSA_ASSIGN_OR_RETURN(Statement write,
                       database_->Prepare("INSERT OR REPLACE INTO clock(row, body) VALUES(1, ?)"));
  NSA_RETURN_IF_ERROR(write.BindBlob(1, Seal(now)).Run());
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  for (auto& [number, job] : changed) Remember(number, std::move(job));
  return step;
}

absl::Status JobStore::WriteRequest(const std::string& request_id, const std::string& fingerprint,
                                    const std::string& job_id) {
  NSA_ASSIGN_OR_RETURN(
      Statement row,
      database_->Prepare(
          "INSERT INTO requests(id, fingerprint, job, unix_seconds) VALUES(?, ?, ?, ?)"));
  return row.Bind(1, request_id)
      .Bind(2, fingerprint)
      .Bind(3, job_id)
      .Bind(4, absl::ToUnixSeconds(clock_.Wall()))
      .Run();
}

absl::Status JobStore::WriteJob(int64_t number, const v1::StoredJob& job) {
  // Progress is in a separate table, which is written with the records.
  v1::StoredJob body = job;
  body.mutable_job()->clear_progress();
  NSA_ASSIGN_OR_RETURN(Statement row,
                       database_->Prepare("UPDATE jobs SET body = ? WHERE number = ?"));
  NSA_RETURN_IF_ERROR(row.BindBlob(1, Seal(body)).Bind(2, number).Run());
  return WriteProgress(number, job.job().progress());
}

absl::Status JobStore::WriteProgress(int64_t number, const v1::JobProgress& progress) {
  NSA_ASSIGN_OR_RETURN(
      Statement row, database_->Prepare("INSERT OR REPLACE INTO progress(job, body) VALUES(?, ?)"));
  return row.Bind(1, number).BindBlob(2, Seal(progress)).Run();
}

absl::Status JobStore::WriteEvent(int64_t number, const v1::Job& job, v1::JobEvent event) {
  event.set_job_id(job.id());
  if (event.unix_nanos() == 0) event.set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
  event.set_state(job.state());
  if (event.generation() == 0) event.set_generation(job.generation());
  NSA_ASSIGN_OR_RETURN(Statement row,
                       database_->Prepare("INSERT INTO events(job, body) VALUES(?, ?)"));
  return row.Bind(1, number).BindBlob(2, Seal(event)).Run();
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
