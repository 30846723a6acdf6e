// The workers' logs: <state_dir>/logs/<job>/rank-0000.gen-000001.0000000000000000.log, cut into
// segments at line ends. A segment's name contains the offset of its first byte in the worker's log
// of that generation. So names and sizes of the files show where to continue, also after a crash.
// At most `quota_bytes` are kept for each rank; the oldest segments are removed first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"

namespace nsa::server {

// Thread-safe; the lock is held while a chunk is read or written.
class LogStore {
 public:
  LogStore(std::filesystem::path dir, int64_t quota_bytes);

  struct Appended {
    int64_t next_offset = 0;
    bool quota_reached = false;  // true the first time that old lines are dropped
  };
  // Bytes that are already stored are skipped; after a gap nothing is stored. Internal when the
  // file cannot be written: nothing is lost, because the sender keeps `data` and sends it again.
  absl::StatusOr<Appended> Append(const std::string& job_id, int64_t generation, int32_t rank,
                                  int64_t offset, std::string_view data);

  // Notes whether the log could be written. True when that is news.
  bool SetWritten(const std::string& job_id, int32_t rank, bool written);

  // A place in a rank's log. {0, 0} is its beginning.
  struct Position {
    int64_t generation = 0;
    int64_t offset = 0;
    bool operator==(const Position&) const = default;
  };
  struct Chunk {
    std::string data;  // whole lines, at most 64 KiB; empty: nothing (yet)
    Position next;
  };
  // The lines after a position. An unfinished last line is returned only when `final`, when another
  // segment follows or when it is longer than a chunk. If the quota has removed bytes, an extra
  // first line says how many.
  absl::StatusOr<Chunk> Read(const std::string& job_id, int32_t rank, Position from, bool final);

  // The position at which the last `lines` lines begin.
  absl::StatusOr<Position> Tail(const std::string& job_id, int32_t rank, int lines);

  // Forgets what is known of the files of all but these jobs; reading or writing a log finds it out
  // again.
  void Prune(const std::set<std::string>& active_jobs);

  // Removes the logs of a job, and its folder.
  absl::Status Remove(const std::string& job_id);

 private:
  struct Segment {
    int64_t generation = 0;
    int64_t base = 0;  // offset of its first byte
    int64_t size = 0;
    bool ends_line = true;       // its last byte is a newline, or it is empty
    std::filesystem::path path;  // beneath dir_
    int64_t end() const { return base + size; }
  };
  struct RankLog {
    std::vector<Segment> segments;  // in order
    bool quota_reported = false;
    bool written = true;  // the last time that it was to be
  };

  RankLog& Load(const std::string& job_id, int32_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Segment& StartSegment(RankLog* log, const std::string& job_id, int64_t generation, int32_t rank,
                        int64_t base) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool DropOldest(RankLog* log) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::filesystem::path dir_;
  const int64_t quota_bytes_;
  const int64_t segment_bytes_;
  Mutex mutex_;
  std::map<std::pair<std::string, int32_t>, RankLog> logs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
