// Uploads published checkpoints to train.checkpoint_url in the background, and keeps the same ones
// there as here. Training never waits for it.
//
// The newest checkpoint goes first, then others that train.keep_checkpoints keeps; one that it no
// longer keeps is not uploaded any more. A failed upload is reported, then repeated with growing
// pauses. What a killed process left half done goes on at the next start. Credentials are read anew
// for each attempt, so that temporary ones may change in their file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/folder.h"

namespace nsa::train {

struct UploaderOptions {
  std::string url;     // train.checkpoint_url
  std::string job_id;  // names the folder there; only checkpoints of this job are uploaded
  Folder checkpoints;  // out_dir/checkpoints
  int32_t keep = 2;    // train.keep_checkpoints
  absl::Duration patience = absl::Seconds(30);    // how long a request is repeated
  absl::Duration first_pause = absl::Seconds(5);  // after a failed upload; each further one doubles
  absl::Duration longest_pause = absl::Minutes(2);

  // Called on the uploader's thread: for each checkpoint that was uploaded, and each attempt that
  // failed.
  std::function<void(const v1::UploadRecord&)> on_record;
  // Called there with CHECKPOINT_UPLOAD_FAILED when uploads begin to fail, and with
  // CHECKPOINT_UPLOAD_RESTORED once one succeeds again.
  std::function<void(const v1::WorkerEvent&)> on_event;
};

// Thread-safe.
class Uploader {
 public:
  // Starts the thread, which also takes up what earlier processes of the job left to do.
  explicit Uploader(UploaderOptions options);
  // Ends an upload that is under way; this takes up to a second. The next start goes on with it.
  ~Uploader();

  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // A checkpoint was published.
  void Published(int64_t step);

  // Whether retention may delete the local checkpoint of this step: it or a newer one is in the
  // store.
  bool MayDelete(int64_t step) const;

  // Whether every checkpoint that was published and is kept is in the store.
  bool UpToDate() const;

  // When a part or a file was last stored, by the monotonic clock.
  absl::Duration progress_at() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa::train
