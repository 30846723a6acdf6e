// The step journal: an append-only file of WorkerRecords. One worker writes it and one agent reads
// it.
//
// A record on disk is little-endian: u32 length of the payload, u32 lower half of XXH3-64 of the
// payload, payload (a serialised WorkerRecord, at most 2 MiB). A record is appended with one
// write(2), so a worker that is killed leaves at most one incomplete record at the end, which the
// reader never returns. The data survives the death of either process, because it is in the page
// cache. It is not synced to disk: after a power loss the training state is lost as well, and
// training resumes from a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

// Appends records. Thread-safe. A file has one writer; each generation of a worker has its own
// file.
class JournalWriter {
 public:
  // Creates the file. FailedPrecondition if it already has content.
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Create(const std::filesystem::path& path);

  // Sets the sequence, and unix_nanos if it is 0, and appends the record. Writes to the page cache
  // and does not wait for the disk. ResourceExhausted if the disk is full: the file then has only
  // the earlier, whole records.
  absl::Status Append(v1::WorkerRecord record);

 private:
  explicit JournalWriter(Fd fd) : fd_(std::move(fd)) {}
  const Fd fd_;
  Mutex mutex_;
  int64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t size_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Reads records in order, from the beginning or from an offset. Only a file that belongs to the
// owner of its folder is read (run_file.h). Not thread-safe.
class JournalReader {
 public:
  // The file may not exist yet.
  explicit JournalReader(std::filesystem::path path, int64_t offset = 0);
  JournalReader(const JournalReader&) = delete;
  JournalReader& operator=(const JournalReader&) = delete;

  // The next whole record; nothing if there is none yet. DataLoss, with the offset, if a record's
  // length, checksum or content is wrong, or it would take far more memory than its bytes.
  absl::StatusOr<std::optional<v1::WorkerRecord>> Next();

  // Offset of the end of the last returned record.
  int64_t offset() const { return offset_; }

 private:
  const std::filesystem::path path_;
  Fd fd_;
  int64_t offset_ = 0;
};

}  // namespace nsa
