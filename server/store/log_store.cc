#include "server/store/log_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/beneath.h"
#include "common/base/status.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkBytes = 64 << 10;
constexpr int64_t kSegmentsPerQuota = 8;

// Every error is Internal: the agent sends the same log again, so nothing is lost. (Agents take the
// codes of OpenBeneath() for a refusal for good, and nsactl takes Unavailable for no answer.)
absl::Status FileError(const fs::path& path, const char* what) {
  return absl::InternalError(
      absl::StrCat(path.string(), ": ", what, ": ", std::strerror(errno), "; check the disk"));
}

absl::StatusOr<Fd> Open(const fs::path& root, const fs::path& inner, int flags) {
  absl::StatusOr<Fd> fd = OpenBeneath(root, inner, flags, 0600);
  if (!fd.ok()) return absl::InternalError(absl::StrCat(fd.status().message(), "; check the disk"));
  return fd;
}

// Appends all of `data`, or nothing.
absl::Status AppendToFile(const fs::path& root, const fs::path& inner, std::string_view data) {
  NSA_ASSIGN_OR_RETURN(const Fd fd, Open(root, inner, O_WRONLY | O_APPEND | O_CREAT));
  const fs::path path = root / inner;
  struct stat before {};
  absl::Status status;
  if (fstat(fd.get(), &before) != 0) status = FileError(path, "stat");
  while (status.ok() && !data.empty()) {
    const ssize_t written = write(fd.get(), data.data(), data.size());
    if (written > 0) {
      data.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      status = FileError(path, "write");
      if (ftruncate(fd.get(), before.st_size) != 0) status = FileError(path, "truncate");
    }
  }
  return status;
}

absl::StatusOr<std::string> ReadRange(const fs::path& root, const fs::path& inner, int64_t offset,
                                      int64_t length) {
  NSA_ASSIGN_OR_RETURN(const Fd fd, Open(root, inner, O_RDONLY));
  std::string data(static_cast<size_t>(length), '\0');
  const ssize_t got = pread(fd.get(), data.data(), data.size(), offset);
  if (got < 0) return FileError(root / inner, "read");
  data.resize(static_cast<size_t>(got));
  return data;
}

}  // namespace

LogStore::LogStore(fs::path dir, int64_t quota_bytes)
    : dir_(std::move(dir)),
      quota_bytes_(quota_bytes),
      segment_bytes_(std::max<int64_t>(quota_bytes / kSegmentsPerQuota, 1)) {}

LogStore::RankLog& LogStore::Load(const std::string& job_id, int32_t rank) {
  const auto [entry, fresh] = logs_.try_emplace({job_id, rank});
  RankLog& log = entry->second;
  if (!fresh) return log;
  const absl::StatusOr<Fd> folder = OpenBeneath(dir_, job_id, O_RDONLY | O_DIRECTORY);
  if (!folder.ok()) return log;
  std::error_code error;
  const fs::path listed = absl::StrCat("/proc/self/fd/", folder->get());
  for (const fs::directory_entry& file : fs::directory_iterator(listed, error)) {
    int of_rank = 0;
    long long generation = 0;
    long long base = 0;
    if (std::sscanf(file.path().filename().c_str(), "rank-%d.gen-%lld.%lld.log", &of_rank,
                    &generation, &base) != 3 ||
        of_rank != rank || file.symlink_status(error).type() != fs::file_type::regular) {
      continue;
    }
    Segment& segment = log.segments.emplace_back();
    segment.generation = generation;
    segment.base = base;
    segment.size = static_cast<int64_t>(file.file_size(error));
    segment.path = fs::path(job_id) / file.path().filename();
    if (segment.size > 0) {
      const auto last = ReadRange(dir_, segment.path, segment.size - 1, 1);
      segment.ends_line = last.ok() && *last == "\n";
    }
  }
  std::ranges::sort(log.segments, {}, [](const Segment& segment) {
    return std::make_pair(segment.generation, segment.base);
  });
  return log;
}

LogStore::Segment& LogStore::StartSegment(RankLog* log, const std::string& job_id,
                                          int64_t generation, int32_t rank, int64_t base) {
  std::error_code error;
  fs::create_directories(dir_ / job_id, error);
  const auto place = std::ranges::upper_bound(
      log->segments, std::make_pair(generation, base), {},
      [](const Segment& segment) { return std::make_pair(segment.generation, segment.base); });
  return *log->segments.insert(
      place, {.generation = generation,
              .base = base,
              .path = fs::path(job_id) /
                      absl::StrFormat("rank-%04d.gen-%06d.%016d.log", rank, generation, base)});
}

bool LogStore::DropOldest(RankLog* log) {
  int64_t total = 0;
  for (const Segment& segment : log->segments) total += segment.size;
  bool dropped = false;
  while (total > quota_bytes_ && log->segments.size() > 1) {
    total -= log->segments.front().size;
    // If the job's folder was replaced by a link, nothing is removed beyond it.
    RemoveBeneath(dir_, log->segments.front().path).IgnoreError();
    log->segments.erase(log->segments.begin());
    dropped = true;
  }
  return dropped;
}

absl::StatusOr<LogStore::Appended> LogStore::Append(const std::string& job_id, int64_t generation,
                                                    int32_t rank, int64_t offset,
                                                    std::string_view data) {
  MutexLock lock(&mutex_);
  RankLog& log = Load(job_id, rank);
  const auto newest = std::ranges::find_if(
      log.segments.rbegin(), log.segments.rend(),
      [&](const Segment& segment) { return segment.generation == generation; });
  Segment* active = newest == log.segments.rend() ? nullptr : &*newest;
  // All of a generation may have been dropped for a newer one: what comes late continues there.
  const bool dropped = active == nullptr && offset > 0 && !log.segments.empty() &&
                       log.segments.back().generation > generation;
  const int64_t next = active != nullptr ? active->end() : dropped ? offset : 0;
  const int64_t skip = next - offset;
  if (offset < 0 || skip < 0 || skip >= static_cast<int64_t>(data.size())) {
    return Appended{.next_offset = next};
  }
  data.remove_prefix(static_cast<size_t>(skip));
  if (active == nullptr) active = &StartSegment(&log, job_id, generation, rank, next);
  while (!data.empty()) {
    const int64_t room = std::max<int64_t>(segment_bytes_ - active->size, 0);
    std::string_view part = data;
    if (static_cast<int64_t>(data.size()) > room) {
      // Cut after the end of a line; within a line only when it is longer than a segment.
      const size_t newline = room == 0 ? std::string_view::npos : data.rfind('\n', room - 1);
      if (newline != std::string_view::npos) {
        part = data.substr(0, newline + 1);
      } else {
        part = data.substr(0, active->ends_line && active->size > 0 ? 0 : room);
      }
    }
    if (!part.empty()) {
      NSA_RETURN_IF_ERROR(AppendToFile(dir_, active->path, part));
      active->size += static_cast<int64_t>(part.size());
      active->ends_line = part.back() == '\n';
      data.remove_prefix(part.size());
    }
    if (!data.empty()) active = &StartSegment(&log, job_id, generation, rank, active->end());
  }
  Appended appended{.next_offset = active->end()};
  if (DropOldest(&log) && !std::exchange(log.quota_reported, true)) appended.quota_reached = true;
  return appended;
}

bool LogStore::SetWritten(const std::string& job_id, int32_t rank, bool written) {
  MutexLock lock(&mutex_);
  return std::exchange(Load(job_id, rank).written, written) != written;
}

absl::StatusOr<LogStore::Chunk> LogStore::Read(const std::string& job_id, int32_t rank,
                                               Position from, bool final) {
  MutexLock lock(&mutex_);
  const RankLog& log = Load(job_id, rank);
  const auto segment = std::ranges::find_if(log.segments, [&](const Segment& candidate) {
    return candidate.generation > from.generation ||
           (candidate.generation == from.generation && candidate.end() > from.offset);
  });
  if (segment == log.segments.end()) return Chunk{.next = from};
  Chunk chunk;
  int64_t start = from.generation == segment->generation ? from.offset : 0;
  if (start < segment->base) {
    chunk.data = absl::StrFormat("[%d bytes dropped: log_quota_bytes]\n", segment->base - start);
    start = segment->base;
  }
  const int64_t available = segment->end() - start;
  NSA_ASSIGN_OR_RETURN(std::string data, ReadRange(dir_, segment->path, start - segment->base,
                                                   std::min(available, kChunkBytes)));
  const auto behind = std::next(segment);
  const bool last_of_segment = static_cast<int64_t>(data.size()) == available;
  const bool nothing_follows = last_of_segment && (final || behind != log.segments.end());
  const bool too_long = static_cast<int64_t>(data.size()) == kChunkBytes;
  const size_t newline = data.rfind('\n');
  if (!nothing_follows && newline != std::string::npos) {
    data.resize(newline + 1);
  } else if (!nothing_follows && !too_long) {
    return Chunk{.next = from};
  }
  chunk.next = {segment->generation, start + static_cast<int64_t>(data.size())};
  chunk.data += data;
  // If a worker died in the middle of a line, the next generation begins on a new line.
  const bool generation_ends =
      last_of_segment && behind != log.segments.end() && behind->generation != segment->generation;
  if (generation_ends && chunk.data.back() != '\n') chunk.data += '\n';
  return chunk;
}

absl::StatusOr<LogStore::Position> LogStore::Tail(const std::string& job_id, int32_t rank,
                                                  int lines) {
  MutexLock lock(&mutex_);
  const RankLog& log = Load(job_id, rank);
  int64_t wanted = lines;
  bool at_end = true;
  for (auto segment = log.segments.rbegin(); segment != log.segments.rend(); ++segment) {
    for (int64_t end = segment->size; end > 0;) {
      const int64_t start = std::max<int64_t>(end - kChunkBytes, 0);
      NSA_ASSIGN_OR_RETURN(const std::string data,
                           ReadRange(dir_, segment->path, start, end - start));
      for (auto i = static_cast<int64_t>(data.size()) - 1; i >= 0; --i) {
        const bool newline = data[static_cast<size_t>(i)] == '\n';
        // A newline at the very end closes the last line and does not begin another.
        if (newline && !std::exchange(at_end, false) && --wanted == 0) {
          return Position{segment->generation, segment->base + start + i + 1};
        }
        at_end = false;
      }
      end = start;
    }
    // A generation always begins a new line, even if the previous one ended in the middle of a
    // line.
    if (segment->base == 0 && segment->size > 0) {
      if (--wanted == 0) return Position{segment->generation, 0};
      at_end = true;
    }
  }
  return Position{};
}

void LogStore::Prune(const std::set<std::string>& active_jobs) {
  MutexLock lock(&mutex_);
  std::erase_if(logs_, [&](const auto& log) { return !active_jobs.contains(log.first.first); });
}

absl::Status LogStore::Remove(const std::string& job_id) {
  MutexLock lock(&mutex_);
  std::erase_if(logs_, [&](const auto& log) { return log.first.first == job_id; });
  std::error_code error;
  fs::remove_all(dir_ / job_id, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat((dir_ / job_id).string(), ": remove: ", error.message(), "; check the disk"));
}

}  // namespace nsa::server
