// The table of the points of jobs' curves: buckets of steps (server/decide/curve.h), validations,
// checkpoints, starts and samples, all of rank 0. It belongs to JobStore, which serialises its use
// and holds the transactions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/curve.h"
#include "server/store/record_table.h"
#include "server/store/sqlite.h"

namespace nsa::server {

// What the curves of a job consist of. The numbers are on disk.
enum class CurveKind : int64_t {
  kSteps = 1,   // buckets of steps
  kLayers = 2,  // buckets of the layers' values
  kEval = 3,
  kCheckpoint = 4,
  kStart = 5,  // of a generation
  kGpus = 6,   // buckets of what is measured of its GPUs
  kSamples = 7,
};

class CurvePointTable {
 public:
  // Added to version 1 later; a coordinator without it leaves it alone.
  static constexpr char kSchema[] = R"(
  CREATE TABLE IF NOT EXISTS curve(row INTEGER PRIMARY KEY, job INTEGER NOT NULL,
                                   kind INTEGER NOT NULL, step INTEGER NOT NULL,
                                   body BLOB NOT NULL);
  CREATE UNIQUE INDEX IF NOT EXISTS curve_by_job ON curve(job, kind, step);
)";
  // The lists of names that buckets of a kind follow: the body is a StoredColumns. Most stores have
  // one of each kind, and one more for each version of the program with other names.
  static constexpr char kColumnsSchema[] = R"(
  CREATE TABLE curve_columns(kind INTEGER NOT NULL, list INTEGER NOT NULL, body BLOB NOT NULL,
                             PRIMARY KEY(kind, list)) WITHOUT ROWID;
)";
  // Deletes rows of the job with the number ?1, at most ?2.
  static constexpr char kPurge[] =
      "DELETE FROM curve WHERE row IN "
      "(SELECT row FROM curve INDEXED BY curve_by_job WHERE job = ? LIMIT ?)";

  // The texts that a job wrote after its validations (sample in the job file). The newest 1,000
  // validations are kept; those of repeated steps appear once.
  struct Samples {
    std::vector<int64_t> steps;             // all that are kept, in order
    int64_t step = 0;                       // whose texts these are; 0: there are none
    std::vector<v1::WorkerRecord> records;  // in the order of the prompts
  };

  CurvePointTable(Database& database, const RecordTable& records)
      : database_(database), records_(records) {}

  // Within a transaction of the caller's: gives the buckets of a store of version 1 their names.
  absl::Status AddNames();
  // Once, before anything else: reads the lists of names, and adds the present ones if they are
  // new. DataLoss when buckets have lost theirs.
  absl::Status LoadNames();

  // Within a transaction of the caller's: looks where the curves of a job end. One that has records
  // and no curve gets one: a version that kept none wrote the store.
  absl::Status Load(int64_t number) { return TailsOf(number).status(); }
  bool IsLoaded(int64_t number) const { return tails_.contains(number); }
  // The job has ended or is gone, or what was written is not committed.
  void Unload(int64_t number) { tails_.erase(number); }

  // Within a transaction of the caller's: adds records of rank 0 in the job's present generation,
  // and `gpus`, as they were last measured, as a point at the last of their steps.
  absl::Status Add(int64_t number, int64_t generation, const std::vector<v1::WorkerRecord>& records,
                   const std::vector<v1::GpuInfo>& gpus);

  // As JobStore has them, once Load() has been committed.
  absl::StatusOr<std::vector<v1::CurveBucket>> Buckets(int64_t number, CurveKind kind,
                                                       int64_t from_step) const;
  absl::StatusOr<std::vector<v1::WorkerRecord>> Marks(int64_t number, CurveKind kind) const;
  absl::StatusOr<Samples> SamplesAt(int64_t number, int64_t step) const;

 private:
  // The last bucket of a curve, to which steps are added. Of marks only the number is known.
  struct Tail {
    int64_t number = 0;
    CurveKind kind = CurveKind::kSteps;
    v1::CurveBucket last;
    size_t rows = 0;
    bool dirty = false;  // not written yet
  };
  using Tails = std::map<CurveKind, Tail>;
  // The names of the buckets of a kind.
  struct Columns {
    std::map<int64_t, EntryOrder> lists;
    int64_t present = -1;  // the list with the names of this program
  };

  absl::Status LoadNamesOf(CurveKind kind);
  absl::Status CheckHasNoBuckets(CurveKind kind) const;
  // A statement whose first parameters are these two.
  absl::StatusOr<Statement> Prepare(std::string_view sql, int64_t number, CurveKind kind) const;
  absl::Status Write(int64_t number, CurveKind kind, int64_t step,
                     const google::protobuf::MessageLite& body);
  absl::Status WriteNames(CurveKind kind, int64_t list, const std::vector<std::string_view>& names);
  absl::Status WriteBucket(int64_t number, CurveKind kind, v1::CurveBucket* bucket);
  absl::Status Parse(std::string_view body, CurveKind kind, v1::WorkerRecord* mark) const;
  absl::Status Parse(std::string_view body, CurveKind kind, v1::CurveBucket* bucket) const;
  template <typename Body>
  absl::StatusOr<std::vector<Body>> Read(int64_t number, CurveKind kind, int64_t from_step) const;
  absl::StatusOr<v1::StoredSamples> ReadSamples(int64_t number, int64_t step) const;

  absl::StatusOr<Tails*> TailsOf(int64_t number);
  absl::Status LoadTail(Tail* tail) const;
  absl::Status AddRecord(int64_t number, int64_t generation, const v1::WorkerRecord& record,
                         Tails* tails);
  absl::Status AddBucket(const v1::CurveBucket& bucket, Tail* tail);
  absl::Status AddMark(int64_t step, const v1::WorkerRecord& record, Tail* tail);
  absl::Status AddSample(int64_t number, const v1::WorkerRecord& record);
  absl::Status Flush(Tail* tail);
  absl::Status FlushAll(Tails* tails);
  absl::Status Thin(Tail* tail);
  absl::Status Rewind(int64_t number, int64_t step, Tails* tails);

  Database& database_;
  const RecordTable& records_;
  std::map<CurveKind, Columns> columns_;
  std::map<int64_t, Tails> tails_;  // of active jobs whose curves were drawn or added to
};

}  // namespace nsa::server
