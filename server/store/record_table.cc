#include "server/store/record_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "server/store/cut_texts.h"
#include "server/store/sealed.h"

namespace nsa::server {
namespace {

// Records at both ends of a journal among which its start and its end are looked for.
constexpr int kEdge = 64;
// The newest records of a job among which its last checkpoint is looked for. Reading as many takes
// about a tenth of a second, once after a start of the coordinator.
constexpr int kCheckpointSearch = 20'000;

// Steps that are kept as they are, of each rank and start; earlier ones stay in the curve.
constexpr int64_t kWholeSteps = 20'000;

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

}  // namespace

void RankJournal::Add(const v1::WorkerRecord& record) {
  next_sequence = record.sequence() + 1;
  if (record.has_started()) first_step = record.started().resumed_step();
  if (record.has_checkpoint()) {
    last_checkpoint_seconds = record.checkpoint().write_seconds();
  }
  if (record.has_finished()) {
    finished = record.finished();
    finished_unix_nanos = record.unix_nanos();
  }
}

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

std::vector<v1::WorkerRecord> FreshRecords(const v1::ReportRecordsRequest& request,
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

absl::Status RecordTable::Write(int64_t number, const v1::ReportRecordsRequest& where,
                                const std::vector<v1::WorkerRecord>& fresh) {
  NSA_ASSIGN_OR_RETURN(
      Statement row,
      database_.Prepare("INSERT OR IGNORE INTO records(job, generation, rank, sequence, body) "
                        "VALUES(?, ?, ?, ?, ?)"));
  for (const v1::WorkerRecord& record : fresh) {
    row.Bind(1, number).Bind(2, where.generation()).Bind(3, int64_t{where.rank()});
    NSA_RETURN_IF_ERROR(row.Bind(4, record.sequence()).BindBlob(5, Seal(record)).Run());
  }
  return DeleteOldSteps(number, where, fresh);
}

absl::Status RecordTable::DeleteOldSteps(int64_t number, const v1::ReportRecordsRequest& where,
                                         const std::vector<v1::WorkerRecord>& fresh) {
  const int64_t last = fresh.back().sequence() - kWholeSteps;
  if (last < 1) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_.Prepare("SELECT position, body FROM records WHERE job = ? AND generation = ? AND "
                        "rank = ? AND sequence BETWEEN ? AND ?"));
  rows.Bind(1, number).Bind(2, where.generation()).Bind(3, int64_t{where.rank()});
  rows.Bind(4, fresh.front().sequence() - kWholeSteps).Bind(5, last);
  std::vector<int64_t> old;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) break;
    v1::WorkerRecord record;
    // What cannot be read stays, so that its next reader reports it.
    if (Unseal(rows.Blob(1), &record).ok() && record.has_step()) old.push_back(rows.Int(0));
  }
  for (const int64_t position : old) {
    NSA_ASSIGN_OR_RETURN(Statement row,
                         database_.Prepare("DELETE FROM records WHERE position = ?"));
    NSA_RETURN_IF_ERROR(row.Bind(1, position).Run());
  }
  return absl::OkStatus();
}

absl::StatusOr<RankJournal*> RecordTable::Journal(int64_t number, const v1::Job& job,
                                                  int64_t generation, int32_t rank) {
  auto& journals = journals_[number];
  const auto key = std::make_pair(generation, rank);
  if (const auto known = journals.find(key); known != journals.end()) return &known->second;
  const bool current = generation == job.generation();
  NSA_ASSIGN_OR_RETURN(RankJournal journal, ReadJournal(number, generation, rank));
  if (current && rank == 0 && job.progress().checkpoint_unix_nanos() != 0) {
    NSA_ASSIGN_OR_RETURN(journal.last_checkpoint_seconds, LastCheckpointSeconds(number));
  }
  // Earlier generations have no more records, except for late ones, which read theirs again.
  if (current) {
    std::erase_if(journals, [&](const auto& known) { return known.first.first < generation; });
  }
  return &(journals[key] = std::move(journal));
}

// The start is among the first records, behind what was noticed while starting; the end is among
// the last, before what was noticed while ending.
absl::StatusOr<RankJournal> RecordTable::ReadJournal(int64_t number, int64_t generation,
                                                     int32_t rank) const {
  RankJournal journal;
  for (const char* order : {"ASC", "DESC"}) {
    const bool backwards = order[0] == 'D';
    NSA_ASSIGN_OR_RETURN(
        Statement rows,
        database_.Prepare(absl::StrCat("SELECT body FROM records WHERE job = ? AND generation = ? "
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
      if (backwards ? record.has_finished() : record.has_started()) journal.Add(record);
      if (record.has_step()) break;
    }
    if (next_sequence != 0) journal.next_sequence = next_sequence;
  }
  return journal;
}

// The write time of the job's newest checkpoint, in whatever generation; 0 when it is not among the
// newest records.
absl::StatusOr<double> RecordTable::LastCheckpointSeconds(int64_t number) const {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_.Prepare(absl::StrCat("SELECT body FROM records INDEXED BY records_by_job WHERE "
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

absl::StatusOr<std::vector<v1::WatchRecordsResponse>> RecordTable::Read(
    int64_t number, int32_t rank, int64_t after_position, int limit, size_t most_bytes) const {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_.Prepare(absl::StrCat(
          "SELECT position, generation, rank, body FROM records INDEXED BY records_by_job "
          "WHERE job = ? AND position > ? ",
          rank >= 0 ? absl::StrCat("AND rank = ", rank) : "", " ORDER BY position LIMIT ?")));
  rows.Bind(1, number).Bind(2, after_position).Bind(3, int64_t{limit});
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

absl::StatusOr<int64_t> RecordTable::TailPosition(int64_t number, int32_t rank, int count) const {
  return database_.QueryInt(absl::StrCat(
      "SELECT COALESCE(MIN(position) - 1, 0) FROM (SELECT position FROM records INDEXED BY "
      "records_by_job WHERE job = ",
      number, rank >= 0 ? absl::StrCat(" AND rank = ", rank) : "", " ORDER BY position DESC LIMIT ",
      count, ")"));
}

absl::Status RecordTable::VisitNewest(int64_t number, int count, const Visit& visit) const {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_.Prepare("SELECT generation, body FROM (SELECT position, generation, body FROM "
                        "records INDEXED BY records_by_job WHERE job = ? AND rank = 0 ORDER BY "
                        "position DESC LIMIT ?) ORDER BY position"));
  rows.Bind(1, number).Bind(2, int64_t{count});
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return absl::OkStatus();
    v1::WorkerRecord record;
    if (!Unseal(rows.Blob(1), &record).ok()) continue;
    NSA_RETURN_IF_ERROR(visit(rows.Int(0), record));
  }
}

}  // namespace nsa::server
