// The folders of prepared data that a job names in place of files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/prepared/folder.h"

namespace nsa::train {

class PreparedFolders {
 public:
  // Opens all folders that the job names; each error of PreparedFolder::Open() gets the field.
  // `progress` must outlive the object.
  static absl::StatusOr<PreparedFolders> Open(const v1::DataSpec& data, ReadProgress* progress);

  // The folder of this path; null if the path is none.
  const PreparedFolder* Find(const std::string& path) const;

  // The token that begins the documents of the first folder; nothing if there is no folder.
  std::optional<int32_t> separator() const;

  // Whether the folders give the documents that the job would make of the files that they were
  // prepared from: their separator, tokenizer and passages are those of the job, and every token is
  // below `vocab`. InvalidArgument, naming the folder. The tokenizer's files need not be here,
  // since nothing is tokenized.
  absl::Status Check(const v1::DataSpec& data, int32_t vocab, int32_t separator) const;

  // Compares the indexes with the hashes of the manifests, and of folders of up to 4 GiB the tokens
  // too, so that a start stays quick. The errors of PreparedFolder::Verify().
  absl::Status VerifyToTrain() const;

  // Reads all of them and compares every hash. The errors of PreparedFolder::Verify().
  absl::Status Verify() const;

 private:
  std::map<std::string, PreparedFolder> folders_;  // by path
};

}  // namespace nsa::train
