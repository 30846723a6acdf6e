// The part of JobStore that stores and reads the workers' records.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "server/decide/alert.h"
#include "server/decide/lifecycle.h"
#include "server/decide/progress.h"
#include "server/store/cut_texts.h"
#include "server/store/job_store.h"
#include "server/store/sealed.h"

namespace nsa::server {
namespace {

// Records at both ends of a journal among which its start and its end are looked for.
constexpr int kEdge = 64;
// The newest records of a job among which its last checkpoint is looked for. Reading as many takes
// about a tenth of a second, once after a start of the coordinator.
constexpr int kCheckpointSearch = 20'000;

void FoldInto(const v1::WorkerRecord& record, RankJournal* journal) {
  journal->next_sequence = record.sequence() + 1;
  if (record.has_started()) journal->first_step = record.started().resumed_step();
  if (record.has_checkpoint()) {
    journal->last_checkpoint_seconds = record.checkpoint().write_seconds();
  }
  if (record.has_finished()) {
    journal->finished = record.finished();
    journal->finished_unix_nanos = record.unix_nanos();
  }
}

// Leaves what a job of this kind can have: the layers of its model, the sets of data.val.
void KeepOwn(const v1::JobSpec& spec, v1::WorkerRecord* record) {
  if (record->has_step()) {
    auto& layers = *record->mutable_step()->mutable_layers();
    const int32_t count = spec.model().n_layers();
    const auto others = std::remove_if(layers.begin(), layers.end(), [&](const auto& layer) {
      return layer.layer() < 0 || layer.layer() >= count;
    });
    layers.erase(others, layers.end());
    if (layers.size() > count) layers.DeleteSubrange(count, layers.size() - count);
  }
  if (record->has_eval()) {
    auto& sets = *record->mutable_eval()->mutable_sets();
    const int count = spec.data().val_size();
    if (sets.size() > count) sets.DeleteSubrange(count, sets.size() - count);
  }
}

// The record within its limits. One that is still too large becomes an event that says so.
v1::WorkerRecord WithinLimits(const v1::WorkerRecord& sent, const v1::JobSpec& spec) {
  v1::WorkerRecord record = sent;
  KeepOwn(spec, &record);
  // A text in a small record is small.
  if (record.ByteSizeLong() <= limits::kReportedTextBytes) return record;
  CutTexts(&record, record.has_sample() ? limits::kSampleTextBytes : limits::kReportedTextBytes);
  if (const size_t bytes = record.ByteSizeLong(); bytes > limits::kRecordBytes) {
    v1::WorkerEvent& event = *record.mutable_event();  // in place of what it had
    event.set_reason(Word(Reason::kTelemetryFailed));
    event.set_severity(v1::SEVERITY_WARNING);
    event.set_text(absl::StrCat("a record of ", bytes, " bytes (at most ", limits::kRecordBytes,
                                ") is left out"));
  }
  return record;
}

// The records that continue the journal at `next`, without those that are already stored.
std::vector<v1::WorkerRecord> Fresh(const v1::ReportRecordsRequest& request,
                                    const v1::JobSpec& spec, int64_t next) {
  std::vector<v1::WorkerRecord> fresh;
  for (const v1::WorkerRecord& record : request.records()) {
    if (record.sequence() < next) continue;
    if (record.sequence() > next) break;
    fresh.push_back(WithinLimits(record, spec));
    ++next;
  }
  return fresh;
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

}  // namespace

absl::Status CheckPlace(const v1::ReportRecordsRequest& request, const v1::Job& job) {
  const int32_t ranks = job.spec().resources().gpus();
  if (request.rank() < 0 || request.rank() >= ranks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank: %d (job %s has %d); drop these records", request.rank(), job.id(), ranks));
  }
  if (request.generation() < 1 || request.generation() > job.generation()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("generation: %d (job %s is at %d); drop these records",
                        request.generation(), job.id(), job.generation()));
  }
  return absl::OkStatus();
}

absl::StatusOr<JobStore::Appended> JobStore::AppendRecords(const v1::ReportRecordsRequest& request,
                                                           const std::vector<v1::GpuInfo>& gpus) {
  absl::StatusOr<Appended> appended;
  {
    MutexLock lock(&mutex_);
    appended = AppendLocked(request, gpus);
    // Nothing was committed: the end of the curve is read again.
    if (!appended.ok()) curves_.erase(request.job_id());
    ForgetIfEnded(request.job_id());
  }
  if (!appended.ok() || !appended->fresh.empty()) {
    ReportIfFailed(appended.status(), "append", request.job_id());
  }
  return appended;
}

absl::StatusOr<JobStore::Appended> JobStore::AppendLocked(const v1::ReportRecordsRequest& request,
                                                          const std::vector<v1::GpuInfo>& gpus) {
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(request.job_id()));
  const int64_t number = entry->number;
  NSA_RETURN_IF_ERROR(CheckPlace(request, entry->job->job()));
  NSA_ASSIGN_OR_RETURN(RankJournal * journal,
                       LoadJournal(*entry, request.generation(), request.rank()));
  Appended appended{.next_sequence = journal->next_sequence,
                    .fresh = Fresh(request, entry->job->job().spec(), journal->next_sequence),
                    .current = request.generation() == entry->job->job().generation(),
                    .job = entry->job};
  if (appended.fresh.empty()) return appended;

  const bool moves = appended.current && request.rank() == 0;
  auto job = std::make_shared<v1::StoredJob>(*entry->job);
  std::vector<v1::JobEvent> events = EventsOf(request, appended.fresh);
  if (moves) {
    const v1::JobSpec& spec = job->job().spec();
    const int64_t last = LastStep(spec, job->job().stop());
    for (const auto& record : appended.fresh) {
      v1::JobProgress& progress = *job->mutable_job()->mutable_progress();
      FoldData(record, spec.data(), &progress);
      Fold(record, spec.train(), last, &progress);
      FoldHealth(record, spec, &progress);
      for (v1::JobEvent& event : FoldAlerts(record, gpus, spec, &progress)) {
        event.set_generation(request.generation());
        events.push_back(std::move(event));
      }
    }
  }
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_RETURN_IF_ERROR(WriteCurve(*entry, request, appended.fresh, gpus));
  NSA_RETURN_IF_ERROR(WriteRecords(number, request, appended.fresh));
  NSA_RETURN_IF_ERROR(DropOldSteps(number, request, appended.fresh));
  if (moves) NSA_RETURN_IF_ERROR(WriteProgress(number, job->job().progress()));
  for (v1::JobEvent& event : events) {
    NSA_RETURN_IF_ERROR(WriteEvent(number, job->job(), std::move(event)));
  }
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  for (const auto& record : appended.fresh) FoldInto(record, journal);
  appended.next_sequence = journal->next_sequence;
  Remember(number, job);
  appended.job = std::move(job);
  return appended;
}

absl::Status JobStore::WriteRecords(int64_t number, const v1::ReportRecordsRequest& where,
                                    const std::vector<v1::WorkerRecord>& records) {
  NSA_ASSIGN_OR_RETURN(
      Statement row,
      database_->Prepare("INSERT OR IGNORE INTO records(job, generation, rank, sequence, body) "
                         "VALUES(?, ?, ?, ?, ?)"));
  for (const v1::WorkerRecord& record : records) {
    row.Bind(1, number).Bind(2, where.generation()).Bind(3, int64_t{where.rank()});
    NSA_RETURN_IF_ERROR(row.Bind(4, record.sequence()).BindBlob(5, Seal(record)).Run());
  }
  return absl::OkStatus();
}

absl::StatusOr<RankJournal*> JobStore::LoadJournal(const Entry& entry, int64_t generation,
                                                   int32_t rank) const {
  Journals& journals = journals_[entry.job->job().id()];
  const auto key = std::make_pair(generation, rank);
  if (const auto known = journals.find(key); known != journals.end()) return &known->second;
  const bool current = generation == entry.job->job().generation();
  NSA_ASSIGN_OR_RETURN(RankJournal journal, ReadJournal(entry.number, generation, rank));
  if (current && rank == 0 && entry.job->job().progress().checkpoint_unix_nanos() != 0) {
    NSA_ASSIGN_OR_RETURN(journal.last_checkpoint_seconds, LastCheckpointSeconds(entry.number));
  }
  // Earlier generations have no more records, except for late ones, which read theirs again.
  if (current) {
    std::erase_if(journals, [&](const auto& known) { return known.first.first < generation; });
  }
  return &(journals[key] = journal);
}

// An agent that sends the records of an ended job again has made its journals be read.
void JobStore::ForgetIfEnded(const std::string& job_id) const {
  const auto entry = FindEntry(job_id);
  if (!entry.ok()) return;
  const v1::Job& job = (*entry)->job->job();
  if (IsTerminal(job.state())) journals_.erase(job.id());
}

// The start is among the first records, behind what was noticed while starting; the end is among
// the last, before what was noticed while ending.
absl::StatusOr<RankJournal> JobStore::ReadJournal(int64_t number, int64_t generation,
                                                  int32_t rank) const {
  RankJournal journal;
  for (const char* order : {"ASC", "DESC"}) {
    const bool backwards = order[0] == 'D';
    NSA_ASSIGN_OR_RETURN(
        Statement rows,
        database_->Prepare(absl::StrCat("SELECT body FROM records WHERE job = ? AND generation = ? "
                                        "AND rank = ? ORDER BY sequence ",
                                        order, " LIMIT ", kEdge)));
    rows.Bind(1, number).Bind(2, generation).Bind(3, int64_t{rank});
    int64_t next_sequence = 0;
    while (true) {
      NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
      if (!more) break;
      v1::WorkerRecord record;
      NSA_RETURN_IF_ERROR(Annotate(Unseal(rows.Blob(0), &record), "record"));
      next_sequence = std::max(next_sequence, record.sequence() + 1);
      if (backwards ? record.has_finished() : record.has_started()) FoldInto(record, &journal);
      if (record.has_step()) break;
    }
    if (next_sequence != 0) journal.next_sequence = next_sequence;
  }
  return journal;
}

// The write time of the job's newest checkpoint, in whatever generation; 0 when it is not among the
// newest records.
absl::StatusOr<double> JobStore::LastCheckpointSeconds(int64_t number) const {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_->Prepare(absl::StrCat("SELECT body FROM records INDEXED BY records_by_job WHERE "
                                      "job = ? ORDER BY position DESC LIMIT ",
                                      kCheckpointSearch)));
  rows.Bind(1, number);
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return 0;
    v1::WorkerRecord record;
    NSA_RETURN_IF_ERROR(Annotate(Unseal(rows.Blob(0), &record), "record"));
    if (record.has_checkpoint()) return record.checkpoint().write_seconds();
  }
}

absl::StatusOr<RankJournal> JobStore::Journal(const std::string& job_id, int64_t generation,
                                              int32_t rank) const {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(job_id));
  NSA_ASSIGN_OR_RETURN(const RankJournal* journal, LoadJournal(*entry, generation, rank));
  const RankJournal copy = *journal;
  ForgetIfEnded(entry->job->job().id());
  return copy;
}

absl::StatusOr<std::vector<v1::WatchRecordsResponse>> JobStore::Records(const std::string& job_id,
                                                                        int32_t rank,
                                                                        int64_t after_position,
                                                                        int limit,
                                                                        size_t most_bytes) const {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(job_id));
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_->Prepare(absl::StrCat(
          "SELECT position, generation, rank, body FROM records INDEXED BY records_by_job "
          "WHERE job = ? AND position > ? ",
          rank >= 0 ? absl::StrCat("AND rank = ", rank) : "", " ORDER BY position LIMIT ?")));
  rows.Bind(1, entry->number).Bind(2, after_position).Bind(3, int64_t{limit});
  std::vector<v1::WatchRecordsResponse> records;
  size_t bytes = 0;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more || bytes > most_bytes) return records;
    const std::string body = rows.Blob(3);
    bytes += body.size();
    v1::WatchRecordsResponse& record = records.emplace_back();
    record.set_position(rows.Int(0));
    record.set_generation(rows.Int(1));
    record.set_rank(static_cast<int32_t>(rows.Int(2)));
    NSA_RETURN_IF_ERROR(Annotate(Unseal(body, record.mutable_record()),
                                 absl::StrCat("record at position ", rows.Int(0))));
  }
}

absl::StatusOr<int64_t> JobStore::TailPosition(const std::string& job_id, int32_t rank,
                                               int count) const {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(job_id));
  return database_->QueryInt(absl::StrCat(
      "SELECT COALESCE(MIN(position) - 1, 0) FROM (SELECT position FROM records INDEXED BY "
      "records_by_job WHERE job = ",
      entry->number, rank >= 0 ? absl::StrCat(" AND rank = ", rank) : "",
      " ORDER BY position DESC LIMIT ", count, ")"));
}

absl::StatusOr<std::vector<v1::JobEvent>> JobStore::Events(const std::string& job_id,
                                                           int64_t after_sequence, int limit,
                                                           size_t most_bytes) const {
  MutexLock lock(&mutex_);
  std::string sql = "SELECT sequence, body FROM events WHERE sequence > ?";
  if (!job_id.empty()) {
    NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(job_id));
    absl::StrAppend(&sql, " AND job = ", entry->number);
  } else if (!deleted_.empty()) {
    const auto number = [](std::string* out, const auto& job) { absl::StrAppend(out, job.second); };
    absl::StrAppend(&sql, " AND job NOT IN (", absl::StrJoin(deleted_, ",", number), ")");
  }
  NSA_ASSIGN_OR_RETURN(Statement rows,
                       database_->Prepare(absl::StrCat(sql, " ORDER BY sequence LIMIT ?")));
  rows.Bind(1, after_sequence).Bind(2, int64_t{limit});
  std::vector<v1::JobEvent> events;
  size_t bytes = 0;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more || bytes > most_bytes) return events;
    const std::string body = rows.Blob(1);
    bytes += body.size();
    v1::JobEvent& event = events.emplace_back();
    NSA_RETURN_IF_ERROR(Annotate(Unseal(body, &event), absl::StrCat("event ", rows.Int(0))));
    event.set_sequence(rows.Int(0));
  }
}

}  // namespace nsa::server
