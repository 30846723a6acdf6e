// Entries of the audit log in a file of bounded size: one JSON object on each line (mode 0600, only
// appended to). A file that is full is renamed to <file>.1, which replaces the one before.
//
// An index in memory has the place of every kStride-th entry, so that a page of entries costs the
// same wherever in the file it is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "nsa/v1/access.pb.h"

namespace nsa::server {

// Not thread-safe.
class AuditFile {
 public:
  // A line of a file that is opened with a larger sequence is no entry but damage.
  static constexpr int64_t kLastSequence = int64_t{1} << 53;
  static constexpr int kStride = 128;

  // Opens or makes the file. A last line that was cut off is removed. PermissionDenied, naming the
  // file, when it cannot be written.
  static absl::StatusOr<AuditFile> Open(std::filesystem::path file, int64_t file_bytes);

  // Appends an entry, whose sequence is above last_sequence(). After an error the file is as it
  // was.
  absl::Status Append(const v1::AuditEntry& entry);

  // At most `limit` entries with a sequence above `after`, in order.
  std::vector<v1::AuditEntry> Read(int64_t after, size_t limit) const;

  // The largest sequence; 0: no entries.
  int64_t last_sequence() const { return last_; }

 private:
  struct Mark {
    int64_t sequence = 0;
    int64_t offset = 0;
  };
  // What is known of the lines of one file.
  struct Index {
    std::vector<Mark> marks;
    int64_t entries = 0;
    int64_t bytes = 0;  // of whole lines
    int64_t last = 0;

    void Add(int64_t sequence, int64_t offset);
    // Where to begin reading, so that no entry above `after` is missed.
    int64_t Before(int64_t after) const;
  };

  AuditFile(std::filesystem::path file, int64_t file_bytes)
      : file_(std::move(file)), file_bytes_(file_bytes) {}
  std::filesystem::path Older() const { return file_.string() + ".1"; }
  absl::Status OpenToWrite();
  static Index Scan(const std::filesystem::path& path, int64_t above);
  static void ReadSome(const std::filesystem::path& path, const Index& index, int64_t after,
                       size_t limit, std::vector<v1::AuditEntry>* entries);

  std::filesystem::path file_;
  int64_t file_bytes_;
  Fd fd_;
  Index older_;
  Index now_;
  int64_t last_ = 0;
};

}  // namespace nsa::server
