#include "common/run/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/run/run_file.h"
#include "common/run/unpacked_bytes.h"
#include "xxhash.h"

namespace nsa {
namespace {

constexpr size_t kHeaderBytes = 8;
constexpr uint32_t kMaxPayloadBytes = 2 * limits::kRecordBytes;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the journal is little-endian");

struct Header {
  uint32_t length;
  uint32_t checksum;
};
static_assert(sizeof(Header) == kHeaderBytes);

uint32_t Checksum(const std::string& payload) {
  return static_cast<uint32_t>(XXH3_64bits(payload.data(), payload.size()));
}

// Reads `size` bytes at an offset, or fewer if the file ends before that.
absl::StatusOr<size_t> ReadAt(int fd, int64_t offset, char* out, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = pread(fd, out + done, size - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, "journal: read");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

absl::Status DiskError(int error) {
  // A file size limit (EFBIG) and a quota have the same effect as a full disk.
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for a record (", std::strerror(error), "); free disk space"));
  }
  return absl::ErrnoToStatus(error, "write");
}

}  // namespace

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Create(
    const std::filesystem::path& path) {
  Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!fd.valid())
    return absl::ErrnoToStatus(errno, absl::StrCat("journal: create ", path.string()));
  std::unique_ptr<JournalWriter> writer(new JournalWriter(std::move(fd)));
  struct stat info = {};
  if (fstat(writer->fd_.get(), &info) != 0) return absl::ErrnoToStatus(errno, "journal: fstat");
  if (info.st_size > 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("journal: %s has %d bytes (must be empty for a new worker); start it in a "
                        "run folder of its own",
                        path.string(), info.st_size));
  }
  return writer;
}

absl::Status JournalWriter::Append(v1::WorkerRecord record) {
  const MutexLock lock(&mutex_);
  record.set_sequence(next_sequence_);
  if (record.unix_nanos() == 0) record.set_unix_nanos(absl::ToUnixNanos(absl::Now()));
  std::string bytes(kHeaderBytes, '\0');
  if (!record.AppendToString(&bytes)) return absl::InternalError("record is incomplete");
  const std::string payload = bytes.substr(kHeaderBytes);
  if (payload.size() > kMaxPayloadBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("record of %d bytes (at most %d)", payload.size(), kMaxPayloadBytes));
  }
  const Header header = {static_cast<uint32_t>(payload.size()), Checksum(payload)};
  std::memcpy(bytes.data(), &header, kHeaderBytes);

  ssize_t n = 0;
  do {
    n = write(fd_.get(), bytes.data(), bytes.size());
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(bytes.size())) {
    size_ += n;
    ++next_sequence_;
    return absl::OkStatus();
  }
  // A short write means a full disk. Remove the partial record, so that the next one follows a
  // whole one.
  const int error = n < 0 ? errno : ENOSPC;
  if (n > 0 && ftruncate(fd_.get(), size_) != 0) {
    return absl::ErrnoToStatus(errno, "cut off a torn record");
  }
  return DiskError(error);
}

JournalReader::JournalReader(std::filesystem::path path, int64_t offset)
    : path_(std::move(path)), offset_(offset) {}

absl::StatusOr<std::optional<v1::WorkerRecord>> JournalReader::Next() {
  if (!fd_.valid()) {
    absl::StatusOr<Fd> opened = OpenRunFile(path_);
    if (absl::IsNotFound(opened.status())) return std::nullopt;
    if (!opened.ok()) return Annotate(opened.status(), "journal");
    fd_ = *std::move(opened);
  }
  Header header = {};
  NSA_ASSIGN_OR_RETURN(const size_t header_bytes,
                       ReadAt(fd_.get(), offset_, reinterpret_cast<char*>(&header), kHeaderBytes));
  if (header_bytes < kHeaderBytes) return std::nullopt;
  const auto damaged = [this](std::string_view what) {
    return absl::DataLossError(absl::StrFormat("journal: %s: %s at offset %d", path_.string(),
                                               std::string(what), offset_));
  };
  if (header.length == 0 || header.length > kMaxPayloadBytes) return damaged("impossible length");
  std::string payload(header.length, '\0');
  NSA_ASSIGN_OR_RETURN(const size_t payload_bytes,
                       ReadAt(fd_.get(), offset_ + static_cast<int64_t>(kHeaderBytes),
                              payload.data(), payload.size()));
  if (payload_bytes < payload.size()) return std::nullopt;
  if (Checksum(payload) != header.checksum) return damaged("wrong checksum");
  if (!UnpackedBytes(*v1::WorkerRecord::descriptor(), payload).has_value()) {
    return damaged("too many elements");
  }
  v1::WorkerRecord record;
  if (!record.ParseFromString(payload)) return damaged("no record");
  offset_ += static_cast<int64_t>(kHeaderBytes + payload.size());
  return record;
}

}  // namespace nsa
