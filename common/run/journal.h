// The step journal: an append-only file of WorkerRecords between one worker (writer) and one agent
// (reader).
//
// A record on disk is: u32 length, u32 low half of XXH3-64 of the payload, payload (a serialised
// WorkerRecord); little-endian. A record is appended with one write(2), so a worker that is killed
// leaves at most one torn record at the end, which the reader never returns. Data survives the
// death of either process (it is in the page cache); it is not fsynced, since a machine that loses
// power also loses the training state, and resumes from a checkpoint.
//
// A payload is at most 64 MiB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

// Appends. Thread-safe. One writer a file; a new worker generation has a new file.
class JournalWriter {
 public:
  // Creates the file; FailedPrecondition when it exists already with content.
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Create(const std::filesystem::path& path);

  // Sets the sequence, and unix_nanos where it is 0, and appends. Never blocks on anything but the
  // page cache. ResourceExhausted when the disk is full: then the record is not in the file and the
  // file is still whole.
  absl::Status Append(v1::WorkerRecord record);

 private:
  explicit JournalWriter(Fd fd) : fd_(std::move(fd)) {}
  const Fd fd_;
  Mutex mutex_;
  int64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t size_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Reads from the beginning or from an offset, and goes on where it stopped. Not thread-safe.
class JournalReader {
 public:
  // The file need not exist yet.
  explicit JournalReader(std::filesystem::path path, int64_t offset = 0);
  JournalReader(const JournalReader&) = delete;
  JournalReader& operator=(const JournalReader&) = delete;

  // The next whole record, or nothing when there is none yet. DataLoss, with the offset, when a
  // whole record's checksum is wrong.
  absl::StatusOr<std::optional<v1::WorkerRecord>> Next();

  // Offset behind the last record returned.
  int64_t offset() const { return offset_; }

 private:
  const std::filesystem::path path_;
  Fd fd_;
  int64_t offset_ = 0;
};

}  // namespace nsa
