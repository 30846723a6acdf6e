// Prepares the data of a job: reads its files once and writes their tokens as folders that training
// maps (common/job/data/prepared.h).
//
//   OUT/train.tokens/      the training files; with data.mix OUT/mix-NAME.tokens/ for each source
//   OUT/val.tokens/        those of data.val_path; with data.mix OUT/val.0.tokens/ and so on
//   OUT/val-NAME.tokens/   those of data.val
//   OUT/job.yaml           the job, on this data by relative paths, with an out_dir of its own
//   OUT/prepared.json      PreparedData; written last
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "nsa/v1/data.pb.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/remote/progress.h"

namespace nsa::train {

struct PrepareOptions {
  v1::JobSpec spec;           // as the job file has it, or with defaults
  std::filesystem::path out;  // see Staging::Create()
  // Where a shard ends; see ShardWriter::Options.
  int64_t shard_bytes = int64_t{1} << 30;
  int64_t shard_documents = 1 << 20;
  // Called about every ten seconds with a sentence about how far it is. May be empty.
  std::function<void(const std::string&)> on_progress;
};

// Nothing appears under the name of OUT until all of it is there. Memory: the largest document,
// 20 bytes for each document of a shard, and what reading takes (read/documents.h).
// Training on the folders gives the rows of training on the files, bit by bit: no document is
// dropped or held out here; the hashes by which training does so are kept.
//
// Errors: those of Staging::Create(), DocumentReader and HashedFile (ResourceExhausted: the disk is
// full); InvalidArgument for a job without files, with data that is prepared already, or with a set
// without documents; Aborted if a file changes while it is read; Cancelled.
absl::StatusOr<v1::PreparedData> PrepareData(const PrepareOptions& options, ReadProgress* progress);

// The job that trains on the data that was prepared for `spec`: the same but for where the tokens
// come from.
v1::JobSpec JobOnPrepared(const v1::JobSpec& spec, const std::filesystem::path& folder);

}  // namespace nsa::train
