#include "server/store/curve_point_table.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "server/store/cut_texts.h"
#include "server/store/sealed.h"

namespace nsa::server {
namespace {

// Records that a curve is made of when there is none. Reading as many takes a fifth of a second,
// once a job.
constexpr int kRecordsOfOldCurve = 20'000;

// Validations whose samples are kept.
constexpr int kSampledSteps = 1'000;

// The texts of a validation: sample.prompts has at most 8.
constexpr int kSamplesOfStep = 16;

// Validations, and checkpoints, that are marks of a curve. Of more, every second one goes.
constexpr size_t kMostMarks = 10'000;

constexpr CurveKind kBucketKinds[] = {CurveKind::kSteps, CurveKind::kLayers, CurveKind::kGpus};

bool IsBuckets(CurveKind kind) {
  return std::ranges::find(kBucketKinds, kind) != std::end(kBucketKinds);
}

// The names of what this program measures.
std::span<const std::string_view> NamesOf(CurveKind kind) {
  if (kind == CurveKind::kSteps) return kStepValues;
  return kind == CurveKind::kLayers ? std::span<const std::string_view>(kLayerValues) : kGpuValues;
}

// In a store of version 1 the values had no names, and this order.
struct {
  CurveKind kind;
  const char* names;
} constexpr kColumnsOfVersion1[] = {
    {CurveKind::kSteps,
     "loss learning_rate grad_norm tokens_per_second data_seconds forward_seconds backward_seconds "
     "communication_seconds optimizer_seconds step_seconds memory_bytes memory_reserved_bytes "
     "skipped_nonfinite"},
    {CurveKind::kLayers,
     "gate_entropy gate_entropy_min gate_max gate_collapse share_cmp share_sel share_win gate_cmp "
     "gate_sel gate_win keys_mean keys_at_max mass_kept mass_kept_p10 mass_window choice_overlap "
     "choice_entropy choice_agreement"},
    {CurveKind::kGpus, "use watts celsius"}};

size_t LimitOf(CurveKind kind) { return kind == CurveKind::kSteps ? kStepBuckets : kLayerBuckets; }

}  // namespace

absl::StatusOr<Statement> CurvePointTable::Prepare(std::string_view sql, int64_t number,
                                                   CurveKind kind) const {
  NSA_ASSIGN_OR_RETURN(Statement statement, database_.Prepare(sql));
  statement.Bind(1, number).Bind(2, static_cast<int64_t>(kind));
  return statement;
}

absl::Status CurvePointTable::Write(int64_t number, CurveKind kind, int64_t step,
                                    const google::protobuf::MessageLite& body) {
  NSA_ASSIGN_OR_RETURN(
      Statement row,
      Prepare("INSERT OR REPLACE INTO curve(job, kind, step, body) VALUES(?, ?, ?, ?)", number,
              kind));
  return row.Bind(3, step).BindBlob(4, Seal(body)).Run();
}

absl::Status CurvePointTable::AddNames() {
  NSA_RETURN_IF_ERROR(database_.Execute(kColumnsSchema));
  for (const auto& [kind, names] : kColumnsOfVersion1) {
    const std::vector<std::string> list = absl::StrSplit(names, ' ');
    NSA_RETURN_IF_ERROR(WriteNames(kind, 0, {list.begin(), list.end()}));
  }
  return absl::OkStatus();
}

absl::Status CurvePointTable::LoadNames() {
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(&database_));
  for (const CurveKind kind : kBucketKinds) NSA_RETURN_IF_ERROR(LoadNamesOf(kind));
  return transaction.Commit();
}

absl::Status CurvePointTable::LoadNamesOf(CurveKind kind) {
  const std::span<const std::string_view> names = NamesOf(kind);
  Columns& columns = columns_[kind];
  NSA_ASSIGN_OR_RETURN(Statement rows,
                       database_.Prepare("SELECT list, body FROM curve_columns WHERE kind = ?"));
  rows.Bind(1, static_cast<int64_t>(kind));
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) break;
    v1::StoredColumns stored;
    NSA_RETURN_IF_ERROR(Annotate(Unseal(rows.Blob(1), &stored), "names of curves"));
    columns.lists[rows.Int(0)] = OrderOf(stored, names);
    if (std::ranges::equal(stored.names(), names)) columns.present = rows.Int(0);
  }
  if (columns.present >= 0) return absl::OkStatus();
  if (columns.lists.empty()) NSA_RETURN_IF_ERROR(CheckHasNoBuckets(kind));
  columns.present = columns.lists.empty() ? 0 : columns.lists.rbegin()->first + 1;
  return WriteNames(kind, columns.present, {names.begin(), names.end()});
}

// The names of this program would be given to values that another one may have written.
absl::Status CurvePointTable::CheckHasNoBuckets(CurveKind kind) const {
  NSA_ASSIGN_OR_RETURN(Statement row, database_.Prepare("SELECT 1 FROM curve WHERE kind = ?"));
  NSA_ASSIGN_OR_RETURN(const bool found, row.Bind(1, static_cast<int64_t>(kind)).Step());
  return found ? absl::DataLossError("the names of curves are missing") : absl::OkStatus();
}

absl::Status CurvePointTable::WriteNames(CurveKind kind, int64_t list,
                                         const std::vector<std::string_view>& names) {
  v1::StoredColumns columns;
  for (const std::string_view name : names) columns.add_names(std::string(name));
  NSA_ASSIGN_OR_RETURN(
      Statement row,
      database_.Prepare("INSERT INTO curve_columns(kind, list, body) VALUES(?, ?, ?)"));
  row.Bind(1, static_cast<int64_t>(kind)).Bind(2, list);
  return row.BindBlob(3, Seal(columns)).Run();
}

absl::Status CurvePointTable::WriteBucket(int64_t number, CurveKind kind, v1::CurveBucket* bucket) {
  bucket->set_columns(columns_.at(kind).present);
  return Write(number, kind, bucket->first_step(), *bucket);
}

absl::Status CurvePointTable::Parse(std::string_view body, CurveKind /*kind*/,
                                    v1::WorkerRecord* mark) const {
  return Annotate(Unseal(body, mark), "curve");
}

absl::Status CurvePointTable::Parse(std::string_view body, CurveKind kind,
                                    v1::CurveBucket* bucket) const {
  NSA_RETURN_IF_ERROR(Annotate(Unseal(body, bucket), "curve"));
  const Columns& columns = columns_.at(kind);
  const int64_t list = bucket->columns();
  bucket->clear_columns();
  if (list == columns.present) return absl::OkStatus();
  const auto order = columns.lists.find(list);
  if (order == columns.lists.end()) {
    return absl::DataLossError(absl::StrCat("curve: there are no names for its columns ", list));
  }
  *bucket = Arranged(*bucket, order->second);
  return absl::OkStatus();
}

template <typename Body>
absl::StatusOr<std::vector<Body>> CurvePointTable::Read(int64_t number, CurveKind kind,
                                                        int64_t from_step) const {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      Prepare("SELECT body FROM curve WHERE job = ? AND kind = ? AND step >= ? ORDER BY step",
              number, kind));
  rows.Bind(3, from_step);
  std::vector<Body> bodies;
  // A whole curve; growing it step by step takes longer than reading it.
  if (IsBuckets(kind) && from_step == 0) bodies.reserve(LimitOf(kind) + 1);
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return bodies;
    NSA_RETURN_IF_ERROR(Parse(rows.Blob(0), kind, &bodies.emplace_back()));
  }
}

absl::StatusOr<v1::StoredSamples> CurvePointTable::ReadSamples(int64_t number, int64_t step) const {
  NSA_ASSIGN_OR_RETURN(Statement row,
                       Prepare("SELECT body FROM curve WHERE job = ? AND kind = ? AND step = ?",
                               number, CurveKind::kSamples));
  NSA_ASSIGN_OR_RETURN(const bool found, row.Bind(3, step).Step());
  v1::StoredSamples samples;
  if (found) NSA_RETURN_IF_ERROR(Annotate(Unseal(row.Blob(0), &samples), "samples"));
  return samples;
}

// A curve has many marks, so their texts are short.
absl::Status CurvePointTable::AddMark(int64_t step, const v1::WorkerRecord& record, Tail* tail) {
  v1::WorkerRecord mark = record;
  CutTexts(&mark, limits::kReportedWordBytes);
  NSA_RETURN_IF_ERROR(Write(tail->number, tail->kind, step, mark));
  // Counted at the first one, and where there may be too many: a repeated step replaces its row.
  if (tail->rows == 0 || ++tail->rows > kMostMarks) NSA_RETURN_IF_ERROR(LoadTail(tail));
  if (tail->rows <= kMostMarks) return absl::OkStatus();
  // The newest one stays.
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      Prepare("DELETE FROM curve WHERE job = ?1 AND kind = ?2 AND step IN (SELECT step "
              "FROM (SELECT step, ROW_NUMBER() OVER (ORDER BY step DESC) AS place FROM "
              "curve WHERE job = ?1 AND kind = ?2) WHERE place % 2 = 0)",
              tail->number, tail->kind));
  NSA_RETURN_IF_ERROR(rows.Run());
  return LoadTail(tail);
}

// Each two buckets become one, so that half of the rows are free.
absl::Status CurvePointTable::Thin(Tail* tail) {
  NSA_ASSIGN_OR_RETURN(const auto buckets, Buckets(tail->number, tail->kind, 0));
  if (buckets.empty()) return absl::OkStatus();
  auto wide = Widen(buckets, WidthFor(buckets, LimitOf(tail->kind)));
  NSA_ASSIGN_OR_RETURN(Statement all, Prepare("DELETE FROM curve WHERE job = ? AND kind = ?",
                                              tail->number, tail->kind));
  NSA_RETURN_IF_ERROR(all.Run());
  for (v1::CurveBucket& bucket : wide) {
    NSA_RETURN_IF_ERROR(WriteBucket(tail->number, tail->kind, &bucket));
  }
  tail->rows = wide.size();
  tail->last = wide.back();
  return absl::OkStatus();
}

absl::Status CurvePointTable::AddBucket(const v1::CurveBucket& bucket, Tail* tail) {
  const int64_t step = bucket.first_step();
  // A step that is repeated after a restart has the same bits.
  if (step <= tail->last.last_step()) return absl::OkStatus();
  if (bucket.count_size() == 0) return absl::OkStatus();
  const int64_t width = std::max<int64_t>(tail->last.width(), 1);
  const bool same = tail->last.last_step() != 0 &&
                    BucketStart(tail->last.first_step(), width) == BucketStart(step, width);
  if (!same) {
    NSA_RETURN_IF_ERROR(Flush(tail));
    tail->last.Clear();
    tail->last.set_width(width);
    ++tail->rows;
  }
  MergeInto(bucket, &tail->last);
  tail->dirty = true;
  if (tail->rows <= LimitOf(tail->kind)) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(Flush(tail));
  return Thin(tail);
}

absl::Status CurvePointTable::Flush(Tail* tail) {
  if (!std::exchange(tail->dirty, false)) return absl::OkStatus();
  return WriteBucket(tail->number, tail->kind, &tail->last);
}

absl::Status CurvePointTable::FlushAll(Tails* tails) {
  for (auto& [kind, tail] : *tails) NSA_RETURN_IF_ERROR(Flush(&tail));
  return absl::OkStatus();
}

// After a restart from a checkpoint, later steps are done again: those of the curve are dropped.
absl::Status CurvePointTable::Rewind(int64_t number, int64_t step, Tails* tails) {
  NSA_RETURN_IF_ERROR(FlushAll(tails));
  for (const CurveKind kind : {CurveKind::kSteps, CurveKind::kLayers, CurveKind::kEval,
                               CurveKind::kGpus, CurveKind::kSamples}) {
    NSA_ASSIGN_OR_RETURN(
        Statement later,
        Prepare("DELETE FROM curve WHERE job = ? AND kind = ? AND step > ?", number, kind));
    NSA_RETURN_IF_ERROR(later.Bind(3, step).Run());
  }
  for (auto& [kind, tail] : *tails) NSA_RETURN_IF_ERROR(LoadTail(&tail));
  return absl::OkStatus();
}

absl::Status CurvePointTable::LoadTail(Tail* tail) const {
  *tail = {.number = tail->number, .kind = tail->kind};
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      Prepare("SELECT body, (SELECT COUNT(*) FROM curve WHERE job = ?1 AND kind = ?2) FROM curve "
              "WHERE job = ?1 AND kind = ?2 ORDER BY step DESC LIMIT 1",
              tail->number, tail->kind));
  NSA_ASSIGN_OR_RETURN(const bool found, rows.Step());
  if (!found) return absl::OkStatus();
  tail->rows = static_cast<size_t>(rows.Int(1));
  if (!IsBuckets(tail->kind)) return absl::OkStatus();
  return Parse(rows.Blob(0), tail->kind, &tail->last);
}

absl::StatusOr<CurvePointTable::Tails*> CurvePointTable::TailsOf(int64_t number) {
  if (const auto known = tails_.find(number); known != tails_.end()) return &known->second;
  Tails tails;
  for (const CurveKind kind : {CurveKind::kSteps, CurveKind::kLayers, CurveKind::kGpus,
                               CurveKind::kEval, CurveKind::kCheckpoint}) {
    tails[kind] = {.number = number, .kind = kind};
    if (IsBuckets(kind)) NSA_RETURN_IF_ERROR(LoadTail(&tails[kind]));
  }
  if (tails[CurveKind::kSteps].rows == 0) {
    NSA_RETURN_IF_ERROR(records_.VisitNewest(
        number, kRecordsOfOldCurve, [&](int64_t generation, const v1::WorkerRecord& record) {
          return AddRecord(number, generation, record, &tails);
        }));
    NSA_RETURN_IF_ERROR(FlushAll(&tails));
  }
  return &(tails_[number] = std::move(tails));
}

absl::Status CurvePointTable::AddRecord(int64_t number, int64_t generation,
                                        const v1::WorkerRecord& record, Tails* tails) {
  const auto tail = [&](CurveKind kind) { return &tails->at(kind); };
  switch (record.kind_case()) {
    case v1::WorkerRecord::kStarted:
      NSA_RETURN_IF_ERROR(Rewind(number, record.started().resumed_step(), tails));
      return Write(number, CurveKind::kStart, generation, record);
    case v1::WorkerRecord::kStep:
      NSA_RETURN_IF_ERROR(AddBucket(StepBucket(record), tail(CurveKind::kSteps)));
      return AddBucket(LayerBucket(record), tail(CurveKind::kLayers));
    case v1::WorkerRecord::kEval:
      return AddMark(record.eval().step(), record, tail(CurveKind::kEval));
    case v1::WorkerRecord::kCheckpoint:
      return AddMark(record.checkpoint().step(), record, tail(CurveKind::kCheckpoint));
    case v1::WorkerRecord::kSample:
      return AddSample(number, record);
    default:
      return absl::OkStatus();
  }
}

// A row has all texts of a validation, which come one after the other.
absl::Status CurvePointTable::AddSample(int64_t number, const v1::WorkerRecord& record) {
  const int64_t step = record.sample().step();
  NSA_ASSIGN_OR_RETURN(v1::StoredSamples samples, ReadSamples(number, step));
  if (samples.records_size() >= kSamplesOfStep) return absl::OkStatus();
  *samples.add_records() = record;
  NSA_RETURN_IF_ERROR(Write(number, CurveKind::kSamples, step, samples));
  if (samples.records_size() > 1) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(
      Statement old,
      Prepare("DELETE FROM curve WHERE job = ?1 AND kind = ?2 AND step <= (SELECT step "
              "FROM curve WHERE job = ?1 AND kind = ?2 ORDER BY step DESC LIMIT 1 "
              "OFFSET ?3)",
              number, CurveKind::kSamples));
  return old.Bind(3, int64_t{kSampledSteps}).Run();
}

absl::Status CurvePointTable::Add(int64_t number, int64_t generation,
                                  const std::vector<v1::WorkerRecord>& records,
                                  const std::vector<v1::GpuInfo>& gpus) {
  NSA_ASSIGN_OR_RETURN(Tails * tails, TailsOf(number));
  for (const v1::WorkerRecord& record : records) {
    NSA_RETURN_IF_ERROR(AddRecord(number, generation, record, tails));
  }
  const auto step = std::find_if(records.rbegin(), records.rend(),
                                 [](const v1::WorkerRecord& record) { return record.has_step(); });
  if (step != records.rend()) {
    NSA_RETURN_IF_ERROR(AddBucket(GpuBucket(*step, gpus), &tails->at(CurveKind::kGpus)));
  }
  return FlushAll(tails);
}

absl::StatusOr<std::vector<v1::CurveBucket>> CurvePointTable::Buckets(int64_t number,
                                                                      CurveKind kind,
                                                                      int64_t from_step) const {
  if (!IsBuckets(kind)) return absl::InvalidArgumentError("curve: no buckets of this kind");
  return Read<v1::CurveBucket>(number, kind, from_step);
}

absl::StatusOr<std::vector<v1::WorkerRecord>> CurvePointTable::Marks(int64_t number,
                                                                     CurveKind kind) const {
  if (IsBuckets(kind)) return absl::InvalidArgumentError("curve: no marks of this kind");
  return Read<v1::WorkerRecord>(number, kind, 0);
}

absl::StatusOr<CurvePointTable::Samples> CurvePointTable::SamplesAt(int64_t number,
                                                                    int64_t step) const {
  Samples samples;
  NSA_ASSIGN_OR_RETURN(Statement rows,
                       Prepare("SELECT step FROM curve WHERE job = ? AND kind = ? ORDER BY step",
                               number, CurveKind::kSamples));
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) break;
    samples.steps.push_back(rows.Int(0));
    if (samples.steps.back() <= step) samples.step = samples.steps.back();
  }
  if (samples.step == 0) return samples;
  NSA_ASSIGN_OR_RETURN(const v1::StoredSamples stored, ReadSamples(number, samples.step));
  samples.records.assign(stored.records().begin(), stored.records().end());
  return samples;
}

}  // namespace nsa::server
