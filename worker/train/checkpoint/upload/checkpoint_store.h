// The checkpoints of one job in an object store: FOLDER/JOB_ID/step-00005000/ has the files of the
// local folder. state.json is uploaded last and deleted first, so a checkpoint that has it is
// complete, whenever a process is killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/s3/s3.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/folder.h"

namespace nsa::train {

// A checkpoint in the store.
struct StoredCheckpoint {
  int64_t step = 0;
  bool complete = false;        // or one whose upload or removal was interrupted
  std::set<std::string> files;  // all that are there
};

// Errors name the URL of an object; see S3. Only one thread at a time may use an object.
class CheckpointStore {
 public:
  // `url` is train.checkpoint_url. Takes the credentials that the environment and the files have
  // now. `patience`: how long a request is repeated. InvalidArgument for a wrong URL or the errors
  // of S3AccessFromEnvironment().
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& url,
                                                               const std::string& job_id,
                                                               absl::Duration patience,
                                                               const std::atomic<bool>* cancelled);

  // "s3://BUCKET/FOLDER/JOB_ID/step-00005000".
  std::string NameOf(int64_t step) const;

  // All checkpoints, oldest first.
  absl::StatusOr<std::vector<StoredCheckpoint>> List();

  // state.json of a checkpoint that is there.
  absl::StatusOr<v1::CheckpointState> State(int64_t step);

  // Uploads a published checkpoint of the folder `checkpoints`, whose file upload.json remembers an
  // upload that was interrupted. `progress` is called after each file and part. Returns the bytes
  // of all files. NotFound if the local folder is gone.
  absl::StatusOr<int64_t> Upload(const Folder& checkpoints, int64_t step,
                                 const std::function<void()>& progress);

  // Downloads a checkpoint into `checkpoints`, compares every length and hash, and publishes it as
  // if it had been written there. DataLoss if it is not what its state.json says.
  absl::Status Download(const StoredCheckpoint& checkpoint, const Folder& checkpoints);

  absl::Status Remove(const StoredCheckpoint& checkpoint);

  // Adds or removes the mark that retention leaves a checkpoint alone.
  absl::Status SetPinned(int64_t step, bool pinned);

 private:
  CheckpointStore(S3Path folder, S3Options options, const std::atomic<bool>* cancelled)
      : folder_(std::move(folder)), s3_(std::move(options), cancelled) {}
  S3Path PathOf(int64_t step, const std::string& file) const;
  absl::Status UploadFile(const Folder& checkpoints, int64_t step, const v1::CheckpointFile& file,
                          const std::function<void()>& progress);
  absl::StatusOr<S3Upload> Interrupted(const Folder& checkpoints, const S3Path& path,
                                       const std::string& hash);
  absl::Status DownloadFile(int64_t step, const v1::CheckpointFile& file, const Folder& to);

  const S3Path folder_;
  S3 s3_;
};

}  // namespace nsa::train
