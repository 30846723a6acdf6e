// The part of JobStore that keeps a job's curves: buckets of steps (server/decide/curve.h),
// validations, checkpoints and starts, written in the transaction that stores the records.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "server/decide/curve.h"
#include "server/decide/lifecycle.h"
#include "server/store/cut_texts.h"
#include "server/store/job_store.h"
#include "server/store/sealed.h"

namespace nsa::server {
namespace {

// Records that a curve is made of when there is none: the store was written by a version that kept
// none. Reading as many takes a fifth of a second, once a job.
constexpr int kRecordsOfOldCurve = 20'000;

// Steps that are kept as they are, of each rank and start; earlier ones stay in the curve.
constexpr int64_t kWholeSteps = 20'000;

// Validations whose samples are kept.
constexpr int kSampledSteps = 1'000;

// The texts of a validation: sample.prompts has at most 8.
constexpr int kSamplesOfStep = 16;

// Validations, and checkpoints, that are marks of a curve. Of more, every second one goes.
constexpr size_t kMarks = 10'000;

constexpr char kInsert[] = "INSERT OR REPLACE INTO curve(job, kind, step, body) VALUES(?, ?, ?, ?)";

bool IsBuckets(CurveKind kind) {
  return kind == CurveKind::kSteps || kind == CurveKind::kLayers || kind == CurveKind::kGpus;
}

size_t LimitOf(CurveKind kind) { return kind == CurveKind::kSteps ? kStepBuckets : kLayerBuckets; }

}  // namespace

absl::Status JobStore::WriteCurveRow(int64_t number, CurveKind kind, int64_t step,
                                     const google::protobuf::MessageLite& body) {
  NSA_ASSIGN_OR_RETURN(Statement row, database_->Prepare(kInsert));
  row.Bind(1, number).Bind(2, static_cast<int64_t>(kind)).Bind(3, step);
  return row.BindBlob(4, Seal(body)).Run();
}

// A curve has many marks, so their texts are short.
absl::Status JobStore::AddMark(int64_t number, CurveKind kind, int64_t step,
                               const v1::WorkerRecord& record, CurveTail* tail) {
  v1::WorkerRecord mark = record;
  CutTexts(&mark, limits::kReportedWordBytes);
  NSA_RETURN_IF_ERROR(WriteCurveRow(number, kind, step, mark));
  // Counted at the first one, and where there may be too many: a repeated step replaces its row.
  if (tail->rows == 0 || ++tail->rows > kMarks) {
    NSA_RETURN_IF_ERROR(LoadTail(number, kind, tail));
  }
  if (tail->rows <= kMarks) return absl::OkStatus();
  // The newest one stays.
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_->Prepare("DELETE FROM curve WHERE job = ?1 AND kind = ?2 AND step IN (SELECT step "
                         "FROM (SELECT step, ROW_NUMBER() OVER (ORDER BY step DESC) AS place FROM "
                         "curve WHERE job = ?1 AND kind = ?2) WHERE place % 2 = 0)"));
  NSA_RETURN_IF_ERROR(rows.Bind(1, number).Bind(2, static_cast<int64_t>(kind)).Run());
  return LoadTail(number, kind, tail);
}

template <typename Body>
absl::StatusOr<std::vector<Body>> JobStore::ReadCurve(int64_t number, CurveKind kind,
                                                      int64_t from_step) const {
  NSA_ASSIGN_OR_RETURN(Statement rows,
                       database_->Prepare("SELECT body FROM curve WHERE job = ? AND kind = ? AND "
                                          "step >= ? ORDER BY step"));
  rows.Bind(1, number).Bind(2, static_cast<int64_t>(kind)).Bind(3, from_step);
  std::vector<Body> bodies;
  // A whole curve; growing it step by step takes longer than reading it.
  if (IsBuckets(kind) && from_step == 0) bodies.reserve(LimitOf(kind) + 1);
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return bodies;
    NSA_RETURN_IF_ERROR(Annotate(Unseal(rows.Blob(0), &bodies.emplace_back()), "curve"));
  }
}

// Each two buckets become one, so that half of the rows are free.
absl::Status JobStore::Thin(int64_t number, CurveKind kind, CurveTail* tail) {
  NSA_ASSIGN_OR_RETURN(const auto buckets, ReadCurve<v1::CurveBucket>(number, kind, 0));
  if (buckets.empty()) return absl::OkStatus();
  const auto wide = Widen(buckets, WidthFor(buckets, LimitOf(kind)));
  NSA_ASSIGN_OR_RETURN(Statement all,
                       database_->Prepare("DELETE FROM curve WHERE job = ? AND kind = ?"));
  NSA_RETURN_IF_ERROR(all.Bind(1, number).Bind(2, static_cast<int64_t>(kind)).Run());
  for (const v1::CurveBucket& bucket : wide) {
    NSA_RETURN_IF_ERROR(WriteCurveRow(number, kind, bucket.first_step(), bucket));
  }
  tail->rows = wide.size();
  tail->last = wide.back();
  return absl::OkStatus();
}

absl::Status JobStore::AddBucket(int64_t number, CurveKind kind, const v1::CurveBucket& bucket,
                                 CurveTail* tail) {
  const int64_t step = bucket.first_step();
  // A step that is repeated after a restart has the same bits.
  if (step <= tail->last.last_step()) return absl::OkStatus();
  if (bucket.count_size() == 0) return absl::OkStatus();
  const int64_t width = std::max<int64_t>(tail->last.width(), 1);
  const bool same = tail->last.last_step() != 0 &&
                    BucketStart(tail->last.first_step(), width) == BucketStart(step, width);
  if (!same) {
    NSA_RETURN_IF_ERROR(FlushCurve(number, kind, tail));
    tail->last.Clear();
    tail->last.set_width(width);
    ++tail->rows;
  }
  MergeInto(bucket, &tail->last);
  tail->dirty = true;
  if (tail->rows <= LimitOf(kind)) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(FlushCurve(number, kind, tail));
  return Thin(number, kind, tail);
}

absl::Status JobStore::FlushCurve(int64_t number, CurveKind kind, CurveTail* tail) {
  if (!std::exchange(tail->dirty, false)) return absl::OkStatus();
  return WriteCurveRow(number, kind, tail->last.first_step(), tail->last);
}

// After a restart from a checkpoint, later steps are done again: those of the curve are dropped.
absl::Status JobStore::RewindCurve(int64_t number, int64_t step, CurveTails* tails) {
  for (auto& [kind, tail] : *tails) NSA_RETURN_IF_ERROR(FlushCurve(number, kind, &tail));
  NSA_ASSIGN_OR_RETURN(
      Statement later,
      database_->Prepare(
          "DELETE FROM curve WHERE job = ? AND kind IN (?, ?, ?, ?, ?) AND step > ?"));
  later.Bind(1, number).Bind(2, static_cast<int64_t>(CurveKind::kSteps));
  later.Bind(3, static_cast<int64_t>(CurveKind::kLayers));
  later.Bind(4, static_cast<int64_t>(CurveKind::kEval));
  later.Bind(5, static_cast<int64_t>(CurveKind::kGpus));
  later.Bind(6, static_cast<int64_t>(CurveKind::kSamples)).Bind(7, step);
  NSA_RETURN_IF_ERROR(later.Run());
  for (auto& [kind, tail] : *tails) NSA_RETURN_IF_ERROR(LoadTail(number, kind, &tail));
  return absl::OkStatus();
}

absl::Status JobStore::LoadTail(int64_t number, CurveKind kind, CurveTail* tail) const {
  *tail = {};
  NSA_ASSIGN_OR_RETURN(Statement rows,
                       database_->Prepare("SELECT body, (SELECT COUNT(*) FROM curve WHERE job = ?1 "
                                          "AND kind = ?2) FROM curve WHERE job = ?1 AND kind = ?2 "
                                          "ORDER BY step DESC LIMIT 1"));
  rows.Bind(1, number).Bind(2, static_cast<int64_t>(kind));
  NSA_ASSIGN_OR_RETURN(const bool found, rows.Step());
  if (!found) return absl::OkStatus();
  tail->rows = static_cast<size_t>(rows.Int(1));
  if (!IsBuckets(kind)) return absl::OkStatus();
  return Annotate(Unseal(rows.Blob(0), &tail->last), "curve");
}

// Makes a curve of a job's newest records.
absl::Status JobStore::MakeCurve(int64_t number, CurveTails* tails) {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_->Prepare(absl::StrCat(
          "SELECT generation, body FROM (SELECT position, generation, body FROM records INDEXED BY "
          "records_by_job WHERE job = ? AND rank = 0 ORDER BY position DESC LIMIT ",
          kRecordsOfOldCurve, ") ORDER BY position")));
  rows.Bind(1, number);
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) break;
    v1::WorkerRecord record;
    // A damaged record is a gap in the curve; reading the records reports it.
    if (!Unseal(rows.Blob(1), &record).ok()) continue;
    NSA_RETURN_IF_ERROR(AddToCurve(number, rows.Int(0), record, tails));
  }
  for (auto& [kind, tail] : *tails) NSA_RETURN_IF_ERROR(FlushCurve(number, kind, &tail));
  return absl::OkStatus();
}

// The end of a job's curves. A job that has records and no curve gets one.
absl::StatusOr<JobStore::CurveTails*> JobStore::LoadTails(const Entry& entry) {
  const std::string& id = entry.job->job().id();
  if (const auto known = curves_.find(id); known != curves_.end()) return &known->second;
  CurveTails tails;
  for (const CurveKind kind : {CurveKind::kSteps, CurveKind::kLayers, CurveKind::kGpus}) {
    NSA_RETURN_IF_ERROR(LoadTail(entry.number, kind, &tails[kind]));
  }
  if (tails[CurveKind::kSteps].rows == 0) {
    NSA_RETURN_IF_ERROR(MakeCurve(entry.number, &tails));
  }
  return &(curves_[id] = std::move(tails));
}

absl::Status JobStore::AddToCurve(int64_t number, int64_t generation,
                                  const v1::WorkerRecord& record, CurveTails* tails) {
  switch (record.kind_case()) {
    case v1::WorkerRecord::kStarted:
      NSA_RETURN_IF_ERROR(RewindCurve(number, record.started().resumed_step(), tails));
      return WriteCurveRow(number, CurveKind::kStart, generation, record);
    case v1::WorkerRecord::kStep:
      NSA_RETURN_IF_ERROR(
          AddBucket(number, CurveKind::kSteps, StepBucket(record), &(*tails)[CurveKind::kSteps]));
      return AddBucket(number, CurveKind::kLayers, LayerBucket(record),
                       &(*tails)[CurveKind::kLayers]);
    case v1::WorkerRecord::kEval:
      return AddMark(number, CurveKind::kEval, record.eval().step(), record,
                     &(*tails)[CurveKind::kEval]);
    case v1::WorkerRecord::kCheckpoint:
      return AddMark(number, CurveKind::kCheckpoint, record.checkpoint().step(), record,
                     &(*tails)[CurveKind::kCheckpoint]);
    case v1::WorkerRecord::kSample:
      return AddSample(number, record);
    default:
      return absl::OkStatus();
  }
}

// A row has all texts of a validation, which come one after the other.
absl::Status JobStore::AddSample(int64_t number, const v1::WorkerRecord& record) {
  const int64_t step = record.sample().step();
  const auto kind = static_cast<int64_t>(CurveKind::kSamples);
  v1::StoredSamples samples;
  NSA_ASSIGN_OR_RETURN(
      Statement row,
      database_->Prepare("SELECT body FROM curve WHERE job = ? AND kind = ? AND step = ?"));
  row.Bind(1, number).Bind(2, kind).Bind(3, step);
  NSA_ASSIGN_OR_RETURN(const bool found, row.Step());
  if (found) NSA_RETURN_IF_ERROR(Annotate(Unseal(row.Blob(0), &samples), "samples"));
  if (samples.records_size() >= kSamplesOfStep) return absl::OkStatus();
  *samples.add_records() = record;
  NSA_RETURN_IF_ERROR(WriteCurveRow(number, CurveKind::kSamples, step, samples));
  if (found) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(
      Statement old,
      database_->Prepare("DELETE FROM curve WHERE job = ?1 AND kind = ?2 AND step <= (SELECT step "
                         "FROM curve WHERE job = ?1 AND kind = ?2 ORDER BY step DESC LIMIT 1 "
                         "OFFSET ?3)"));
  return old.Bind(1, number).Bind(2, kind).Bind(3, int64_t{kSampledSteps}).Run();
}

absl::Status JobStore::WriteCurve(const Entry& entry, const v1::ReportRecordsRequest& where,
                                  const std::vector<v1::WorkerRecord>& records,
                                  const std::vector<v1::GpuInfo>& gpus) {
  if (where.rank() != 0 || where.generation() != entry.job->job().generation()) {
    return absl::OkStatus();
  }
  NSA_ASSIGN_OR_RETURN(CurveTails * tails, LoadTails(entry));
  for (const v1::WorkerRecord& record : records) {
    NSA_RETURN_IF_ERROR(AddToCurve(entry.number, where.generation(), record, tails));
  }
  const auto step = std::find_if(records.rbegin(), records.rend(),
                                 [](const v1::WorkerRecord& record) { return record.has_step(); });
  if (step != records.rend()) {
    NSA_RETURN_IF_ERROR(AddBucket(entry.number, CurveKind::kGpus, GpuBucket(*step, gpus),
                                  &(*tails)[CurveKind::kGpus]));
  }
  for (auto& [kind, tail] : *tails) NSA_RETURN_IF_ERROR(FlushCurve(entry.number, kind, &tail));
  return absl::OkStatus();
}

absl::Status JobStore::DropOldSteps(int64_t number, const v1::ReportRecordsRequest& where,
                                    const std::vector<v1::WorkerRecord>& fresh) {
  const int64_t last = fresh.back().sequence() - kWholeSteps;
  if (last < 1) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_->Prepare("SELECT position, body FROM records WHERE job = ? AND generation = ? AND "
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
                         database_->Prepare("DELETE FROM records WHERE position = ?"));
    NSA_RETURN_IF_ERROR(row.Bind(1, position).Run());
  }
  return absl::OkStatus();
}

// Makes the curve of a job that has none. Only the tails of active jobs stay in memory.
absl::Status JobStore::EnsureCurve(const Entry& entry) {
  const std::string& id = entry.job->job().id();
  if (curves_.contains(id)) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_RETURN_IF_ERROR(LoadTails(entry).status());
  const absl::Status committed = transaction.Commit();
  if (!committed.ok() || IsTerminal(entry.job->job().state())) curves_.erase(id);
  return committed;
}

absl::StatusOr<std::vector<v1::CurveBucket>> JobStore::Buckets(const std::string& job_id,
                                                               CurveKind kind, int64_t from_step) {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(job_id));
  NSA_RETURN_IF_ERROR(EnsureCurve(*entry));
  if (!IsBuckets(kind)) return absl::InvalidArgumentError("curve: no buckets of this kind");
  return ReadCurve<v1::CurveBucket>(entry->number, kind, from_step);
}

absl::StatusOr<std::vector<v1::WorkerRecord>> JobStore::Marks(const std::string& job_id,
                                                              CurveKind kind) {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(job_id));
  NSA_RETURN_IF_ERROR(EnsureCurve(*entry));
  if (IsBuckets(kind)) return absl::InvalidArgumentError("curve: no marks of this kind");
  return ReadCurve<v1::WorkerRecord>(entry->number, kind, 0);
}

absl::StatusOr<JobStore::Samples> JobStore::SamplesAt(const std::string& job_id, int64_t step) {
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(job_id));
  NSA_RETURN_IF_ERROR(EnsureCurve(*entry));
  const auto kind = static_cast<int64_t>(CurveKind::kSamples);
  Samples samples;
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database_->Prepare("SELECT step FROM curve WHERE job = ? AND kind = ? ORDER BY step"));
  rows.Bind(1, entry->number).Bind(2, kind);
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) break;
    samples.steps.push_back(rows.Int(0));
    if (samples.steps.back() <= step) samples.step = samples.steps.back();
  }
  if (samples.step == 0) return samples;
  NSA_ASSIGN_OR_RETURN(
      Statement row,
      database_->Prepare("SELECT body FROM curve WHERE job = ? AND kind = ? AND step = ?"));
  row.Bind(1, entry->number).Bind(2, kind).Bind(3, samples.step);
  NSA_ASSIGN_OR_RETURN(const bool found, row.Step());
  v1::StoredSamples stored;
  if (found) NSA_RETURN_IF_ERROR(Annotate(Unseal(row.Blob(0), &stored), "samples"));
  samples.records.assign(stored.records().begin(), stored.records().end());
  return samples;
}

absl::StatusOr<int64_t> JobStore::LastEvent() const {
  MutexLock lock(&mutex_);
  return database_->QueryInt("SELECT COALESCE(MAX(sequence), 0) FROM events");
}

}  // namespace nsa::server
